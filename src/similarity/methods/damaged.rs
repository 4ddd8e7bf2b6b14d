/// A stored sketch does not have the form that its method writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sketch of method {method} is damaged: expected {expected}; rebuild the index of that method")]
pub struct Damaged {
    /// [`super::Method::NAME`].
    pub method: &'static str,
    /// The form expected there.
    pub expected: &'static str,
}
