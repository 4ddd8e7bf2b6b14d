//! A segment: the operations of some pieces of targets, one after the other, and their encoding.

use super::columns::{Column, Columns, Reader};
use super::header::Header;
use super::matcher::place_after;
use super::op::{CopyOp, Place};
use super::varint::{unzigzag, zigzag};
use super::view::ViewName;
use super::{DeltaError, PIECE_BYTES_MAX, PIECE_OPS_MAX, SEGMENT_OPS};

/// The context of a piece: the views that its copies refer to, and the expected place.
#[derive(Clone, Default)]
pub(super) struct Context {
    pub names: Vec<ViewName>,
    pub sizes: Vec<u64>,
    pub place: Place,
    /// Bytes of the target that are in no piece yet.
    pub left: u64,
}

impl Context {
    /// Returns the length of the next piece, and whether it is the last.
    pub fn piece(&self) -> (usize, bool) {
        let len = self.left.min(PIECE_BYTES_MAX as u64);
        (len as usize, len == self.left)
    }

    /// Continues after a piece.
    pub fn advance(&mut self, len: usize, copies: &[CopyOp]) {
        self.place = place_after(copies, len, self.place);
        self.left -= len as u64;
    }
}

/// An item of a segment.
pub(super) enum Item {
    /// The next target.
    Header(Header),
    /// The next piece of it: its length and copies.
    Piece(usize, Vec<CopyOp>),
}

/// Writes the copies of a piece of `len` bytes.
pub(super) fn put_piece(columns: &mut Columns, context: &Context, len: usize, copies: &[CopyOp]) {
    columns.put(Column::Copies, copies.len() as u64);
    let (mut at, mut place) = (0, context.place);
    for copy in copies {
        columns.put(Column::Literal, (copy.at - at) as u64);
        // Most copies reach to the end of the piece.
        columns.put(Column::Len, if copy.end() == len { 0 } else { copy.len as u64 });
        if context.names.len() > 1 {
            columns.put(
                Column::View,
                ((copy.view + context.names.len() - place.view) % context.names.len()) as u64,
            );
        }
        let expected = expected(place, copy.view, copy.at - at);
        columns.put(Column::Offset, zigzag(copy.offset.wrapping_sub(expected) as i64));
        (at, place) = (copy.end(), copy.after());
    }
}

/// Returns the expected offset of a copy after `literals` bytes: literals replace equally many bytes. A copy from
/// another view is expected at its start.
fn expected(place: Place, view: usize, literals: usize) -> u64 {
    if view == place.view { place.offset.wrapping_add(literals as u64) } else { 0 }
}

/// Reads the copies of a piece of `len` bytes; `ops` counts those of the segment.
pub(super) fn take_piece(
    columns: &mut Reader,
    context: &Context,
    len: usize,
    ops: &mut usize,
) -> Result<Vec<CopyOp>, DeltaError> {
    let count = columns.take(Column::Copies)?;
    DeltaError::at_most("copies in a segment", (SEGMENT_OPS + PIECE_OPS_MAX - *ops) as u64, count)?;
    let mut copies = Vec::new();
    let (mut at, mut place) = (0usize, context.place);
    for _ in 0..count {
        let literals = columns.take(Column::Literal)?;
        let outside = || DeltaError::damaged("copies within a piece", "one outside");
        if literals >= (len - at) as u64 {
            return Err(outside());
        }
        let begin = at + literals as usize;
        let copied = match columns.take(Column::Len)? {
            0 => len - begin,
            copied if copied <= (len - begin) as u64 => copied as usize,
            _ => return Err(outside()),
        };
        let views = context.names.len();
        let view = if views > 1 {
            let code = columns.take(Column::View)?;
            DeltaError::at_most("views of a target", views as u64 - 1, code)?;
            (code as usize + place.view) % views
        } else {
            0
        };
        let expected = expected(place, view, literals as usize);
        let offset = expected.wrapping_add(unzigzag(columns.take(Column::Offset)?) as u64);
        let size = context.sizes.get(view).copied().unwrap_or(0);
        if offset > size || size - offset < copied as u64 {
            return Err(DeltaError::damaged(
                "a copy from within a base",
                format_args!("{copied} bytes from {offset} of {size}"),
            ));
        }
        let copy = CopyOp { at: begin, len: copied, view, offset };
        (at, place) = (copy.end(), copy.after());
        copies.push(copy);
        *ops += 1;
    }
    Ok(copies)
}
