//! What a disk was told, in order, and what it may hold if the power goes.
//!
//! A disk keeps all that it was sent before a flush that it has answered. Of what came later it keeps what it
//! likes, in units of a sector; of two writes to the same sector never the earlier one over the later.
//! One thing here is kinder than a disk: a write that was on its way while a flush was counts as before it.

use super::random::Random;

/// What one request did.
pub enum Event {
    /// Bytes at an offset, both multiples of a sector.
    Write { offset: usize, bytes: Box<[u8]> },
    /// Everything before is durable.
    Flush,
}

/// A disk at the beginning, and everything that it was told from then on.
pub struct Log {
    pub base: Vec<u8>,
    pub events: Vec<Event>,
}

/// Atomic units of disks.
const SECTORS: [usize; 2] = [512, 4096];

/// What becomes of the writes since the last flush.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Nothing of them is kept.
    None,
    /// All of them are.
    All,
    /// Each with a chance of this many in 100; a part of those that are not is torn at this unit.
    Some { percent: u64, sector: usize },
}

impl Log {
    /// Number of the first event that is not sure to be kept if the power goes before event `cut`.
    pub fn settled(&self, cut: usize) -> usize {
        self.events[..cut].iter().rposition(|event| matches!(event, Event::Flush)).map_or(0, |at| at + 1)
    }

    pub fn flushes(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Flush)).count()
    }

    pub fn bytes(&self) -> usize {
        let len = |event: &Event| if let Event::Write { bytes, .. } = event { bytes.len() } else { 0 };
        self.events.iter().map(len).sum()
    }
}

/// Builds what is on the disk after cuts, taken in order.
pub struct Cutter<'a> {
    log: &'a Log,
    durable: Vec<u8>,
    applied: usize,
}

impl<'a> Cutter<'a> {
    pub fn new(log: &'a Log) -> Cutter<'a> {
        Cutter { log, durable: log.base.clone(), applied: 0 }
    }

    /// The disk if the power goes before event `cut`, which is no earlier than the last one asked for; and in
    /// words what was done to the writes since the last flush.
    pub fn cut(&mut self, cut: usize, random: &mut Random) -> (Vec<u8>, String) {
        let settled = self.log.settled(cut);
        assert!(settled >= self.applied, "cuts come in order");
        for event in &self.log.events[self.applied..settled] {
            write(&mut self.durable, event);
        }
        self.applied = settled;
        let mut image = self.durable.clone();
        let fate = match random.below(8) {
            0 => Fate::None,
            1 => Fate::All,
            _ => {
                let percent = [5, 20, 50, 80, 95][random.below(5) as usize];
                Fate::Some { percent, sector: SECTORS[random.below(2) as usize] }
            }
        };
        let pending = &self.log.events[settled..cut];
        for event in pending {
            match fate {
                Fate::None => {}
                Fate::All => write(&mut image, event),
                Fate::Some { percent, .. } if random.below(100) < percent => write(&mut image, event),
                Fate::Some { sector, .. } => {
                    if random.below(2) == 0 {
                        tear(&mut image, event, sector, random);
                    }
                }
            }
        }
        (image, format!("{} writes since flush, {fate:?}", pending.len()))
    }

    /// The disk of the last cut, at the same place, if it had kept nothing or everything since the flush; for messages.
    pub fn without_and_with_pending(&self, cut: usize) -> [Vec<u8>; 2] {
        let mut all = self.durable.clone();
        self.log.events[self.applied..cut].iter().for_each(|event| write(&mut all, event));
        [self.durable.clone(), all]
    }

    /// Where the writes since the flush went: offsets and lengths.
    pub fn pending(&self, cut: usize) -> Vec<(usize, usize)> {
        let place = |event: &Event| match event {
            Event::Write { offset, bytes } => Some((*offset, bytes.len())),
            Event::Flush => None,
        };
        self.log.events[self.applied..cut].iter().filter_map(place).collect()
    }
}

fn write(image: &mut [u8], event: &Event) {
    if let Event::Write { offset, bytes } = event {
        image[*offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// Writes some sectors: the first few, the last few, or any.
fn tear(image: &mut [u8], event: &Event, sector: usize, random: &mut Random) {
    let Event::Write { offset, bytes } = event else {
        return;
    };
    let count = bytes.len().div_ceil(sector) as u64;
    let (how, at) = (random.below(3), random.below(count + 1));
    for (i, part) in bytes.chunks(sector).enumerate() {
        let kept = match how {
            0 => (i as u64) < at,
            1 => (i as u64) >= at,
            _ => random.below(2) == 0,
        };
        if kept {
            let start = offset + i * sector;
            image[start..start + part.len()].copy_from_slice(part);
        }
    }
}
