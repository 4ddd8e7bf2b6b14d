//! Two contents side by side, with their common parts marked: lines of text if both look like text, otherwise
//! rows of hex.
//!
//! All rows have the same height, so that the script knows the position of each; long lines are split. The
//! document itself contains the text: it can be searched and printed, and works without a script. Contents
//! are untrusted: characters that would control a terminal, or reverse the order of text, are shown by
//! number.

use serde::Serialize;
use std::fmt::Write as _;

/// Limit of marked regions, the longest first; the table has all.
pub const MARKED_MAX: usize = 2000;
/// Limit of bands between both in the picture, the longest first.
const BANDS: usize = 200;
/// Characters of a line in a row.
const WIDTH: usize = 160;
/// Bytes in a row of hex.
const HEX: usize = 16;
/// Bytes examined to detect text.
const LOOKED_AT: usize = 8000;
/// Colours: classes `c0` and on.
const COLOURS: usize = 12;

/// A part of a content.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Its offset in the content.
    pub offset: u64,
    /// Line ends before it.
    pub lines_before: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// A run of common bytes.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// Its start in each.
    pub from: [u64; 2],
    /// Its length.
    pub length: u64,
}

/// Input of the page; see the module.
#[derive(Clone, Debug)]
pub struct SideBySide {
    /// Their names.
    pub names: [String; 2],
    /// Their lengths in bytes.
    pub sizes: [u64; 2],
    /// The shown pieces of each, in order, without overlap.
    pub pieces: [Vec<Piece>; 2],
    /// The common runs. A region's number on the page is its index here, from 1.
    pub shared: Vec<Shared>,
}

/// A piece of a row, of one region or of none.
#[derive(Debug, PartialEq)]
pub(super) struct Span {
    pub text: String,
    /// Its number; 0 for none.
    pub region: usize,
    /// Whether the region is seen for the first time.
    pub starts: bool,
}

impl Span {
    pub fn colour(&self) -> usize {
        self.region % COLOURS
    }
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Row {
    /// A line's number, or an offset; empty on a continued line.
    pub number: String,
    pub spans: Vec<Span>,
    /// Text for an omitted part here.
    pub gap: bool,
}

/// One side on the page.
pub(super) struct Pane {
    pub name: String,
    pub blocks: Vec<Vec<Row>>,
}

/// A band of the picture: connects a region's positions in both.
pub(super) struct Band {
    pub region: usize,
    pub colour: usize,
    pub points: String,
    pub told: String,
}

/// The rows of a region, including the last; none if it is not on the page.
#[derive(Serialize)]
pub(super) struct Mark {
    region: usize,
    rows: [Option<(usize, usize)>; 2],
}

/// Input of the template.
pub(super) struct Shown {
    pub panes: Vec<Pane>,
    pub bands: Vec<Band>,
    pub marks: Vec<Mark>,
    pub text: bool,
}

impl SideBySide {
    /// Returns the indexes of the marked regions, the longest first.
    fn longest(&self) -> Vec<usize> {
        let mut longest: Vec<usize> = (0..self.shared.len()).collect();
        longest.sort_by_key(|&i| std::cmp::Reverse(self.shared[i].length));
        longest.truncate(MARKED_MAX);
        longest
    }

    /// Whether either is shown incompletely.
    pub fn is_cut(&self) -> bool {
        let shown = |side: usize| self.pieces[side].iter().map(|piece| piece.bytes.len() as u64).sum::<u64>();
        (0..2).any(|side| shown(side) < self.sizes[side])
    }

    pub(super) fn shown(&self) -> Shown {
        let longest = self.longest();
        let text = self.pieces.iter().flatten().all(|piece| looks_like_text(&piece.bytes));
        let sides = [0, 1].map(|side| Side::lay(self, side, &longest, text));
        let mut marks: Vec<Mark> = longest
            .iter()
            .map(|&i| {
                let rows = [0, 1].map(|side| {
                    let Shared { from, length } = self.shared[i];
                    sides[side].rows_of(from[side], from[side].saturating_add(length))
                });
                Mark { region: i + 1, rows }
            })
            .collect();
        marks.sort_by_key(|mark| mark.region);
        let mut panes = Vec::new();
        for (side, name) in sides.into_iter().zip(&self.names) {
            let mut blocks: Vec<Vec<Row>> = Vec::new();
            for row in side.rows {
                match blocks.last_mut().filter(|block| block.len() < 50) {
                    Some(block) => block.push(row),
                    None => blocks.push(vec![row]),
                }
            }
            panes.push(Pane { name: name.clone(), blocks });
        }
        Shown { panes, bands: self.bands(&longest), marks, text }
    }

    fn bands(&self, longest: &[usize]) -> Vec<Band> {
        let along = |side: usize, at: u64| at as f64 / self.sizes[side].max(1) as f64 * 1000.0;
        let band = |&i: &usize| {
            let Shared { from: [a, b], length } = self.shared[i];
            let [a, a_end] = [along(0, a), along(0, a + length)];
            let [b, b_end] = [along(1, b), along(1, b + length)];
            Band {
                region: i + 1,
                colour: (i + 1) % COLOURS,
                points: format!(
                    "{a:.2},0 {a_end:.2},0 {a_end:.2},12 {b_end:.2},78 {b_end:.2},90 {b:.2},90 {b:.2},78 {a:.2},12"
                ),
                told: format!("{}: {length} bytes", i + 1),
            }
        };
        longest.iter().take(BANDS).map(band).collect()
    }
}

/// Rows of one side, and the start of each.
#[derive(Default)]
struct Side {
    rows: Vec<Row>,
    /// Offset of the first byte of each row.
    starts: Vec<u64>,
    ends: Vec<u64>,
}

impl Side {
    fn lay(side_by_side: &SideBySide, side: usize, longest: &[usize], text: bool) -> Side {
        let mut laid = Side::default();
        let mut seen = vec![false; side_by_side.shared.len() + 1];
        let mut at = 0;
        for piece in &side_by_side.pieces[side] {
            laid.gap(at, piece.offset);
            let paint = paint(piece, side_by_side, side, longest);
            match text {
                true => laid.text(piece, &paint, &mut seen),
                false => laid.hex(piece, &paint, &mut seen),
            }
            at = piece.end();
        }
        laid.gap(at, side_by_side.sizes[side]);
        laid
    }

    fn gap(&mut self, from: u64, to: u64) {
        if from < to {
            let text = format!("{} bytes are not shown", to - from);
            let spans = vec![Span { text, region: 0, starts: false }];
            self.push(Row { number: String::new(), spans, gap: true }, from, to);
        }
    }

    fn push(&mut self, row: Row, from: u64, to: u64) {
        self.rows.push(row);
        self.starts.push(from);
        self.ends.push(to);
    }

    fn text(&mut self, piece: &Piece, paint: &[u32], seen: &mut [bool]) {
        let mut number = piece.lines_before;
        let mut at = 0;
        for line in piece.bytes.split_inclusive(|&byte| byte == b'\n') {
            number += 1;
            let mut first = true;
            // Split at characters; invalid UTF-8 counts by bytes.
            let mut rest = line;
            while !rest.is_empty() {
                let (row, after) = rest.split_at(cut(rest, WIDTH));
                let number = if first { number.to_string() } else { String::new() };
                let colours = &paint[at..at + row.len()];
                let spans = spans(row, colours, seen, &mut |bytes| readable(bytes));
                let from = piece.offset + at as u64;
                self.push(Row { number, spans, gap: false }, from, from + row.len() as u64);
                at += row.len();
                rest = after;
                first = false;
            }
        }
    }

    fn hex(&mut self, piece: &Piece, paint: &[u32], seen: &mut [bool]) {
        let mut at = 0;
        // Rows begin at multiples, wherever the piece does.
        let mut length = HEX - (piece.offset % HEX as u64) as usize;
        while at < piece.bytes.len() {
            let end = piece.bytes.len().min(at + length);
            let (bytes, colours) = (&piece.bytes[at..end], &paint[at..end]);
            let mut hex = spans(bytes, colours, seen, &mut |bytes| {
                bytes.iter().fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x} ");
                    text
                })
            });
            let indent = HEX - length;
            let space = |n: usize| Span { text: " ".repeat(n), region: 0, starts: false };
            if indent > 0 {
                hex.insert(0, space(3 * indent));
            }
            hex.push(space(3 * (HEX - indent - bytes.len()) + 1 + indent));
            let ascii = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' };
            hex.extend(spans(bytes, colours, seen, &mut |bytes| bytes.iter().map(ascii).collect()));
            // At the end of the row, so that columns stay aligned.
            let starting =
                hex.iter_mut().filter_map(|span| std::mem::take(&mut span.starts).then_some(span.region));
            let starting: Vec<usize> = starting.collect();
            let label = |region| [space(1), Span { text: String::new(), region, starts: true }];
            hex.extend(starting.into_iter().flat_map(label));
            let from = piece.offset + at as u64;
            let number = format!("{:08x}", from - from % HEX as u64);
            self.push(Row { number, spans: hex, gap: false }, from, from + bytes.len() as u64);
            at = end;
            length = HEX;
        }
    }

    /// Returns the first and the last row that show some of these bytes.
    fn rows_of(&self, from: u64, to: u64) -> Option<(usize, usize)> {
        let first = self.ends.partition_point(|&end| end <= from);
        let after = self.starts.partition_point(|&start| start < to);
        let shown = |row: &usize| !self.rows[*row].gap;
        let first = (first..after).find(shown)?;
        Some((first, (first..after).rfind(shown)?))
    }
}

/// Returns the region number of each byte. The longest of overlapping regions is on top.
fn paint(piece: &Piece, side_by_side: &SideBySide, side: usize, longest: &[usize]) -> Vec<u32> {
    let mut paint = vec![0; piece.bytes.len()];
    for &i in longest.iter().rev() {
        let Shared { from, length } = side_by_side.shared[i];
        let start = from[side].max(piece.offset);
        let end = from[side].saturating_add(length).min(piece.end());
        if start < end {
            let number = u32::try_from(i + 1).unwrap_or(0);
            paint[(start - piece.offset) as usize..(end - piece.offset) as usize].fill(number);
        }
    }
    paint
}

/// Returns runs of one region, as text.
fn spans(bytes: &[u8], paint: &[u32], seen: &mut [bool], tell: &mut dyn FnMut(&[u8]) -> String) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let region = paint[at] as usize;
        let run = paint[at..].iter().take_while(|&&other| other as usize == region).count();
        let starts = region > 0 && !std::mem::replace(&mut seen[region], true);
        spans.push(Span { text: tell(&bytes[at..at + run]), region, starts });
        at += run;
    }
    spans
}

/// Returns the length of the first characters, at least one.
fn cut(bytes: &[u8], characters: usize) -> usize {
    let is_start = |byte: &u8| byte & 0xc0 != 0x80;
    let start = bytes.iter().enumerate().filter(|(_, byte)| is_start(byte)).map(|(i, _)| i).nth(characters);
    // Without character starts it is not text.
    start.unwrap_or(bytes.len()).min(4 * characters)
}

/// Returns readable text: without its line end, and with names for invisible characters.
fn readable(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let mut text = String::with_capacity(bytes.len());
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '\t' => text.push(c),
            c if c.is_control() || turns_around(c) => text.extend(c.escape_unicode()),
            c => text.push(c),
        }
    }
    text
}

/// Whether a character is invisible and changes the order of others, or has no form.
fn turns_around(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{61c}' | '\u{feff}')
}

/// Detects text as git does: no zero byte at the beginning, and few non-text bytes.
fn looks_like_text(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(LOOKED_AT)];
    if head.contains(&0) {
        return false;
    }
    let odd = String::from_utf8_lossy(head)
        .chars()
        .filter(|c| *c == char::REPLACEMENT_CHARACTER || (c.is_control() && !c.is_ascii_whitespace()))
        .count();
    odd * 20 <= head.len() || odd <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side_by_side(a: &[u8], b: &[u8], shared: &[(u64, u64, u64)]) -> SideBySide {
        let piece = |bytes: &[u8]| vec![Piece { offset: 0, lines_before: 0, bytes: bytes.to_vec() }];
        SideBySide {
            names: ["a".to_owned(), "b".to_owned()],
            sizes: [a.len() as u64, b.len() as u64],
            pieces: [piece(a), piece(b)],
            shared: shared.iter().map(|&(a, b, length)| Shared { from: [a, b], length }).collect(),
        }
    }

    fn told(pane: &Pane) -> Vec<String> {
        let span = |span: &Span| match span.region {
            0 => span.text.clone(),
            n => format!("<{n}{}:{}>", if span.starts { "*" } else { "" }, span.text),
        };
        let row = |row: &Row| format!("{}|{}", row.number, row.spans.iter().map(span).collect::<String>());
        pane.blocks.iter().flatten().map(row).collect()
    }

    #[test]
    fn regions_have_their_number_on_both_sides() {
        let shown = side_by_side(b"one\ntwo\nthree\n", b"three\none\nx", &[(0, 6, 4), (8, 0, 6)]).shown();
        assert!(shown.text);
        assert_eq!(told(&shown.panes[0]), ["1|<1*:one>", "2|two", "3|<2*:three>"]);
        assert_eq!(told(&shown.panes[1]), ["1|<2*:three>", "2|<1*:one>", "3|x"]);
        let rows: Vec<_> = shown.marks.iter().map(|mark| (mark.region, mark.rows)).collect();
        assert_eq!(rows, [(1, [Some((0, 0)), Some((1, 1))]), (2, [Some((2, 2)), Some((0, 0))])]);
        assert_eq!(shown.bands.len(), 2);
    }

    #[test]
    fn of_regions_that_overlap_the_longest_is_on_top_and_all_have_rows() {
        let shown = side_by_side(b"aaaa\nbb", b"aaaa\n", &[(0, 0, 5), (1, 1, 3)]).shown();
        assert_eq!(told(&shown.panes[1]), ["1|<1*:aaaa>"]);
        assert_eq!(shown.marks[1].rows, [Some((0, 0)), Some((0, 0))]);
    }

    #[test]
    fn what_is_no_text_is_hex_in_aligned_rows() {
        let mut all = side_by_side(b"\0\x01 <tag> ~\x7f 3456789", b"x", &[(2, 0, 1)]);
        let shown = all.shown();
        assert!(!shown.text);
        let rows = told(&shown.panes[0]);
        assert_eq!(
            rows[0],
            "00000000|00 01 <1:20 >3c 74 61 67 3e 20 7e 7f 20 33 34 35 36  ..<1: ><tag> ~. 3456 <1*:>"
        );
        assert_eq!(rows[1], format!("00000010|37 38 39 {}789", " ".repeat(40)));
        all.pieces[0][0].offset = 0x13;
        all.sizes[0] = 1000;
        let rows = told(&all.shown().panes[0]);
        assert_eq!(rows[0], "|19 bytes are not shown");
        assert!(rows[1].starts_with(&format!("00000010|{}00 01 20 ", " ".repeat(9))), "{rows:?}");
        assert!(rows[2].starts_with("00000020|34 35 36 37 38 39 "), "{rows:?}");
        assert_eq!(rows[3], "|962 bytes are not shown");
        assert!(all.is_cut());
        let none = all.shown().marks[0].rows[0];
        assert_eq!(none, None, "what is not on the page has no row");
    }

    #[test]
    fn long_lines_and_odd_characters() {
        let line = "é".repeat(WIDTH) + "end\u{202e}\x1b\tx\r\n";
        let shown = side_by_side(line.as_bytes(), &[b'\xbf'; 2000], &[]).shown();
        assert!(!shown.text, "bytes that are no UTF-8");
        let shown = side_by_side(line.as_bytes(), b"", &[]).shown();
        let rows = told(&shown.panes[0]);
        assert_eq!(rows[0], format!("1|{}", "é".repeat(WIDTH)));
        assert_eq!(rows[1], "|end\\u{202e}\\u{1b}\tx");
        assert!(cut(&[0xbf; 2000], WIDTH) == 4 * WIDTH);
    }
}
