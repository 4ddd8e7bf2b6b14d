//! The views of a target's bases: the bytes that copies refer to. Both sides open the same ones.

use super::header::Form;
use super::source::read_full;
use super::{BaseId, Bases, DeltaError, ReadAt, zip};
use std::io;

/// A base as it is, or as an archive with its members inflated.
pub(super) struct View<'b> {
    pub name: ViewName,
    pub size: u64,
    content: Content<'b>,
}

/// The name of a view. Views with equal names have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ViewName {
    pub base: BaseId,
    pub inflated: bool,
}

enum Content<'b> {
    AsIs(Box<dyn ReadAt + 'b>),
    Inflated(Vec<u8>),
}

impl<'b> View<'b> {
    pub fn open(bases: &'b dyn Bases, name: ViewName) -> Result<View<'b>, DeltaError> {
        let base = name.base;
        let opened = bases.open(base).map_err(|source| DeltaError::Base { base, source })?;
        let opened = opened.ok_or(DeltaError::UnknownBase { base })?;
        let size = opened.size();
        if !name.inflated {
            return Ok(View { name, size, content: Content::AsIs(opened) });
        }
        // Both sides decide the same: the inflated view of a base that is too long is empty.
        let mut bytes = Vec::new();
        if size <= zip::ARCHIVE_BYTES_MAX {
            bytes.resize(size as usize, 0);
            let read = read_full(&*opened, 0, &mut bytes);
            let read = read.map_err(|source| DeltaError::Base { base, source })?;
            if read < bytes.len() {
                return Err(shorter(base));
            }
        }
        let view = zip::inflate(&bytes).view;
        Ok(View { name, size: view.len() as u64, content: Content::Inflated(view) })
    }

    /// Returns all views of a target, in the order of their numbers.
    pub fn open_all(bases: &'b dyn Bases, ids: &[BaseId], form: Form) -> Result<Vec<View<'b>>, DeltaError> {
        names(ids, form).map(|name| View::open(bases, name)).collect()
    }

    /// Fills `buf` from `offset`. The caller has checked the size.
    pub fn read_exact(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeltaError> {
        let content: &dyn ReadAt = match &self.content {
            Content::AsIs(content) => &**content,
            Content::Inflated(bytes) => bytes,
        };
        let read = read_full(content, offset, buf);
        let read = read.map_err(|source| DeltaError::Base { base: self.name.base, source })?;
        if read < buf.len() { Err(shorter(self.name.base)) } else { Ok(()) }
    }
}

fn shorter(base: BaseId) -> DeltaError {
    DeltaError::Base { base, source: io::Error::new(io::ErrorKind::UnexpectedEof, "it has become shorter") }
}

/// Returns the views of a target with these bases.
pub(super) fn names(ids: &[BaseId], form: Form) -> impl Iterator<Item = ViewName> {
    let forms: &[bool] = match form {
        Form::AsIs => &[false],
        Form::Members => &[true],
        Form::MembersBesideAsIs => &[true, false],
    };
    forms.iter().flat_map(move |&inflated| ids.iter().map(move |&base| ViewName { base, inflated }))
}
