/// The way of a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// Both may have changed.
    #[default]
    Long,
    /// This side has the tree that the other is to get.
    Ahead,
    /// The other side has the tree that this one is to get.
    Behind,
}
