//! Answers about similar, contained and grouped files, from the indexes and the contents.

pub(crate) mod by_method;
pub mod compare;
mod contained;
mod groups;
pub mod methods;
mod queries;
mod recommend;
pub(crate) mod similar;
mod standing;
pub mod templates;
pub(crate) mod text;
mod through_views;
pub(crate) mod with_paths;

pub use by_method::{FileRef, IndexedContent};
pub(crate) use contained::share;
pub use contained::{ContainedFile, Place, TreeContained};
pub use groups::{Group, GroupMember, GroupOptions, GroupProgress, Groups, IdenticalSet};
pub use queries::Queries;
pub use similar::{Match, Matches};
