//! Copies, and their expected places.

/// Bytes of a piece that a view has too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyOp {
    /// First byte in the piece.
    pub at: usize,
    /// Number of bytes, at least 1.
    pub len: usize,
    /// The view in the target's space.
    pub view: usize,
    /// First byte in the view.
    pub offset: u64,
}

impl CopyOp {
    pub fn end(&self) -> usize {
        self.at + self.len
    }

    /// Returns the place in the view after the copied bytes.
    pub fn after(&self) -> Place {
        Place { view: self.view, offset: self.offset + self.len as u64 }
    }
}

/// A place in a view. A target begins at the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub view: usize,
    pub offset: u64,
}
