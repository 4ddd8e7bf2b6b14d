//! Changing files in every way that programs know.

use super::map::{Aligned, How, Map};
use super::table::{BLOCK, BLOCKS, Kind, SMALL_BYTES_MAX, Table, Turn, bytes, kind, len_of, word};
use super::{Rng, file_path};
use std::fs::{self, File, OpenOptions};
use std::io::{Result, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

/// Makes a new version of a file; false if somebody else is at it.
pub fn write(table: &'static Table, dir: &Path, file: usize, rng: &mut Rng) -> Result<bool> {
    let Some(turn) = table.files[file].begin() else {
        return Ok(false);
    };
    match kind(file) {
        Kind::InPlace => in_place(&turn, dir, file, rng)?,
        Kind::Replaced => replace(&turn, dir, file, rng)?,
        Kind::Rewritten => rewrite(&turn, dir, file, rng)?,
        Kind::Appended => append(&turn, dir, file, rng)?,
    }
    table.writes.fetch_add(1, SeqCst);
    Ok(true)
}

/// The first version of each file.
pub fn create(table: &'static Table, dir: &Path, file: usize) -> Result<()> {
    let turn = table.files[file].begin().expect("nobody else is there yet");
    let len = len_of(file, turn.version);
    turn.begun(0..BLOCKS);
    fs::write(file_path(dir, file), bytes(file, turn.version, 0..len / 8))?;
    turn.done(0..BLOCKS);
    turn.state.len.store(len as u64, SeqCst);
    turn.state.oldest.store(turn.version, SeqCst);
    Ok(())
}

fn in_place(turn: &Turn, dir: &Path, file: usize, rng: &mut Rng) -> Result<()> {
    let all = len_of(file, 0) / BLOCK;
    let first = rng.below(all);
    let blocks = match rng.below(3) {
        0 => 0..all,
        _ => first..first + 1 + rng.below(all - first),
    };
    let words = blocks.start * BLOCK / 8..blocks.end * BLOCK / 8;
    let start = (blocks.start * BLOCK) as u64;
    let content = bytes(file, turn.version, words.clone());
    let path = file_path(dir, file);
    let mut open = OpenOptions::new();
    open.read(true).write(true);
    turn.begun(blocks.clone());
    match rng.below(5) {
        0 | 1 => {
            let to = open.open(path)?;
            to.write_all_at(&content, start)?;
            turn.done(blocks);
            if rng.below(4) == 0 {
                to.sync_data()?;
            }
        }
        2 => {
            // In pieces that fall together with nothing.
            let to = open.open(path)?;
            for (i, piece) in content.chunks(1000).enumerate() {
                to.write_all_at(piece, start + i as u64 * 1000)?;
            }
            turn.done(blocks);
        }
        3 => {
            let to = open.open(path)?;
            let map = Map::new(&to, all * BLOCK, How::Writable)?;
            if rng.below(2) == 0 {
                drop(to);
            }
            words.for_each(|index| map.set(index, word(file, turn.version, index)));
            turn.done(blocks);
            if rng.below(2) == 0 {
                map.sync()?;
            }
        }
        _ => {
            let to = open.custom_flags(libc::O_DIRECT).open(path)?;
            let mut aligned = Aligned::new(content.len());
            aligned.bytes(content.len()).copy_from_slice(&content);
            to.write_all_at(aligned.bytes(content.len()), start)?;
            turn.done(blocks);
        }
    }
    Ok(())
}

fn replace(turn: &Turn, dir: &Path, file: usize, rng: &mut Rng) -> Result<()> {
    let fresh = dir.join(format!("fresh-{file}"));
    let content = bytes(file, turn.version, 0..len_of(file, turn.version) / 8);
    let mut to = File::create(&fresh)?;
    to.write_all(&content)?;
    if rng.below(4) == 0 {
        to.sync_all()?;
    }
    drop(to);
    if rng.below(3) == 0 {
        // So that it is a stub, or just becoming one, when it is renamed.
        std::thread::sleep(std::time::Duration::from_millis(rng.below(30) as u64));
    }
    turn.begun(0..BLOCKS);
    fs::rename(&fresh, file_path(dir, file))?;
    turn.done(0..BLOCKS);
    turn.state.len.store(content.len() as u64, SeqCst);
    Ok(())
}

fn rewrite(turn: &Turn, dir: &Path, file: usize, rng: &mut Rng) -> Result<()> {
    let content = bytes(file, turn.version, 0..len_of(file, turn.version) / 8);
    let path = file_path(dir, file);
    turn.begun(0..BLOCKS);
    let mut to = match rng.below(3) {
        0 => File::create(path)?,
        1 => {
            let to = OpenOptions::new().write(true).open(path)?;
            to.set_len(0)?;
            to
        }
        _ => {
            // A little is left, and written over.
            let to = OpenOptions::new().write(true).open(path)?;
            to.set_len(8)?;
            to
        }
    };
    for piece in content.chunks(1 + rng.below(content.len())) {
        to.write_all(piece)?;
    }
    turn.done(0..BLOCKS);
    turn.state.len.store(content.len() as u64, SeqCst);
    Ok(())
}

fn append(turn: &Turn, dir: &Path, file: usize, rng: &mut Rng) -> Result<()> {
    let path = file_path(dir, file);
    let mut len = turn.state.len.load(SeqCst) as usize;
    let more = 8 * (1 + rng.below(1500));
    turn.begun(0..BLOCKS);
    if len + more > SMALL_BYTES_MAX {
        len = 0;
        OpenOptions::new().write(true).truncate(true).open(&path)?;
    }
    let mut to = OpenOptions::new().append(true).open(&path)?;
    to.write_all(&bytes(file, turn.version, len / 8..(len + more) / 8))?;
    turn.state.len.store((len + more) as u64, SeqCst);
    if len == 0 {
        turn.state.oldest.store(turn.version, SeqCst);
    }
    Ok(())
}
