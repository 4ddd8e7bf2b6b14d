use crate::repo::Repo;
use std::path::Path;

/// Environment of an action.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The open store.
    pub repo: &'a Repo,
    /// The overlay's mount point.
    pub mountpoint: Option<&'a Path>,
}
