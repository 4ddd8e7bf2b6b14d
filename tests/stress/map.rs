//! A mapped file.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Unmapped when dropped.
pub struct Map {
    at: *mut libc::c_void,
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    Shared,
    Private,
    Writable,
}

impl Map {
    pub fn new(file: &File, len: usize, how: How) -> std::io::Result<Map> {
        let (protection, flags) = match how {
            How::Shared => (libc::PROT_READ, libc::MAP_SHARED),
            How::Private => (libc::PROT_READ, libc::MAP_PRIVATE),
            How::Writable => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
        };
        // SAFETY: a new mapping of a file that nobody makes shorter, unmapped when this is dropped.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(Map { at, len }) }
    }

    /// Its words as they are now, which may be others a moment later.
    pub fn words(&self) -> Vec<u64> {
        let at = self.at.cast::<u64>();
        // SAFETY: within the mapping, which is aligned to pages; other processes may write meanwhile, hence volatile.
        (0..self.len / 8).map(|index| unsafe { at.add(index).read_volatile() }).collect()
    }

    pub fn set(&self, index: usize, word: u64) {
        assert!(index < self.len / 8);
        // SAFETY: as above; called only for writable mappings.
        unsafe { self.at.cast::<u64>().add(index).write_volatile(word) }
    }

    pub fn sync(&self) -> std::io::Result<()> {
        // SAFETY: the mapping is that long.
        match unsafe { libc::msync(self.at, self.len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Memory as O_DIRECT wants it.
pub struct Aligned {
    memory: Vec<u64>,
    start: usize,
}

impl Aligned {
    pub fn new(len: usize) -> Aligned {
        let memory = vec![0u64; (len + 4096) / 8];
        let start = (4096 - memory.as_ptr() as usize % 4096) % 4096 / 8;
        Aligned { memory, start }
    }

    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: any bytes are words and words are any bytes; the range is checked here.
        let (_, bytes, _) = unsafe { self.memory[self.start..self.start + len / 8].align_to_mut::<u8>() };
        bytes
    }
}
