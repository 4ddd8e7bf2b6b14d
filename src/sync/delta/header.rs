//! The header of a target in a segment.

use super::columns::{Column, Columns, Reader};
use super::varint::{unzigzag, zigzag};
use super::zip::{self, Member};
use super::{BASES_MAX, BaseId, DeltaError, MEMBERS_MAX};
use crate::deflate::Level;

/// The form in which a target was compared with its bases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// Byte for byte.
    #[default]
    AsIs,
    /// With the members of the target and of its bases inflated.
    Members,
    /// The same, but some members cannot be deflated again. The bases are also compared byte for byte, since they may
    /// contain these members.
    MembersBesideAsIs,
}

/// A target without its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub form: Form,
    pub bases: Vec<BaseId>,
    /// Bytes in the pieces.
    pub size: u64,
    /// Bytes of the content: equal to `size` unless members are inflated.
    pub content_size: u64,
    /// The members if the target is an archive.
    pub members: Vec<Member>,
}

/// The bases that were named last, so that the next targets can name them with few bytes.
#[derive(Default)]
pub(super) struct Names {
    last: u64,
}

impl Names {
    fn code(&mut self, base: BaseId, hint: Option<BaseId>) -> u64 {
        let last = std::mem::replace(&mut self.last, base.0);
        if hint == Some(base) { 0 } else { zigzag(base.0.wrapping_sub(last) as i64).wrapping_add(1) }
    }

    fn base(&mut self, code: u64, hint: Option<BaseId>) -> Result<BaseId, DeltaError> {
        let base = match (code.checked_sub(1), hint) {
            (Some(code), _) => self.last.wrapping_add(unzigzag(code) as u64),
            (None, Some(hint)) => hint.0,
            (None, None) => {
                return Err(DeltaError::damaged("the number of a base", "an older one of the same name"));
            }
        };
        self.last = base;
        Ok(BaseId(base))
    }
}

impl Header {
    /// Writes the first part: the bases and form, which determine the views.
    pub fn put_bases(&self, columns: &mut Columns, names: &mut Names, hint: Option<BaseId>) {
        columns.put(Column::Head, (self.bases.len() as u64) << 2 | self.form as u64);
        for &base in &self.bases {
            columns.put(Column::Base, names.code(base, hint));
        }
    }

    /// Writes the second part; `first` is the length of the first view, or 0 if there is none.
    pub fn put_size(&self, columns: &mut Columns, first: u64) {
        columns.put(Column::Size, zigzag(self.size.wrapping_sub(first) as i64));
        if self.form != Form::AsIs {
            columns.put(Column::Size, self.content_size);
            columns.put(Column::Member, self.members.len() as u64);
            for member in &self.members {
                columns.put(Column::Member, member.before);
                columns.put(Column::Member, member.len);
                columns.put(Column::Member, u64::from(member.level.number()));
            }
        }
    }

    /// Reads the first part.
    pub fn take_bases(
        columns: &mut Reader,
        names: &mut Names,
        hint: Option<BaseId>,
    ) -> Result<Header, DeltaError> {
        let head = columns.take(Column::Head)?;
        let form = match head & 3 {
            0 => Form::AsIs,
            1 => Form::Members,
            2 => Form::MembersBesideAsIs,
            _ => return Err(DeltaError::damaged("a target of form 0, 1 or 2", "3")),
        };
        DeltaError::at_most("bases of a target", BASES_MAX as u64, head >> 2)?;
        let mut header = Header { form, ..Header::default() };
        for _ in 0..head >> 2 {
            header.bases.push(names.base(columns.take(Column::Base)?, hint)?);
        }
        Ok(header)
    }

    /// Reads the second part.
    pub fn take_size(&mut self, columns: &mut Reader, first: u64) -> Result<(), DeltaError> {
        self.size = first.wrapping_add(unzigzag(columns.take(Column::Size)?) as u64);
        self.content_size = self.size;
        if self.form == Form::AsIs {
            return Ok(());
        }
        DeltaError::at_most("bytes of an inflated archive", zip::VIEW_BYTES_MAX, self.size)?;
        self.content_size = columns.take(Column::Size)?;
        DeltaError::at_most("bytes of an archive", zip::ARCHIVE_BYTES_MAX, self.content_size)?;
        let mut left = self.size;
        let members = columns.take(Column::Member)?;
        DeltaError::at_most("members of an archive", MEMBERS_MAX as u64, members)?;
        for _ in 0..members {
            let before = columns.take(Column::Member)?;
            if before < zip::HEADER_BYTES as u64 {
                return Err(DeltaError::damaged("a header before a member", format_args!("{before} bytes")));
            }
            let len = columns.take(Column::Member)?;
            left = before
                .checked_add(len)
                .and_then(|both| left.checked_sub(both))
                .ok_or_else(|| DeltaError::damaged("members within the archive", "more"))?;
            let level = columns.take(Column::Member)?;
            let level = u8::try_from(level).ok().and_then(Level::of);
            let level =
                level.ok_or_else(|| DeltaError::damaged("a level of deflate from 1 to 9", "another"))?;
            self.members.push(Member { before, len, level });
        }
        Ok(())
    }
}
