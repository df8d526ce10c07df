//! Compression of completions: similar completions are held back until a pass ends and are written
//! as one block.
//!
//! [`barewire_layouts::cqe::compressed`] has the format of blocks. A block is closed by a
//! completion that does not fit, by its maximum size, or by the end of the pass. A single
//! completion is written uncompressed.

use barewire_layouts::command::cq::CompressionLayout;
use barewire_layouts::cqe::compressed::{
    MAX_ENHANCED, MINI_ARRAY, MiniArray, MiniChecksum, MiniCqe, MiniFormat, MiniRequester,
};
use barewire_layouts::cqe::{Cqe64, CqeFormat, CqeOpcode};
use zerocopy::transmute;

use crate::limits;

/// Completions of a block in the basic layout.
const MAX_BASIC: usize = limits::COMPRESSED_CQES as usize;

/// The compression state of a queue, with the completions held back.
#[derive(Debug)]
pub(crate) struct Compression {
    pub(crate) layout: CompressionLayout,
    pub(crate) format: MiniFormat,
    /// The completion that the others are compared with. In the enhanced layout it is written
    /// before them.
    title: Option<Cqe64>,
    waiting: Vec<Cqe64>,
    /// Index that the next receive WQE must have.
    next: u16,
}

/// An entry to be written to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// An entry with an owner byte.
    Entry(Cqe64),
    /// Only mini CQEs.
    Array(MiniArray),
}

impl Compression {
    pub(crate) fn new(layout: CompressionLayout, format: MiniFormat) -> Self {
        Self { layout, format, title: None, waiting: Vec::new(), next: 0 }
    }

    /// Returns the number of completions held back.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Holds back `cqe` and returns true if it fits the block. Otherwise the block must be closed
    /// first and `cqe` be offered again; if no completion is held back, it must be written
    /// uncompressed.
    pub(crate) fn offer(&mut self, cqe: &Cqe64) -> bool {
        let (first, most) = match self.layout {
            CompressionLayout::Basic => (self.waiting.is_empty(), MAX_BASIC),
            CompressionLayout::Enhanced => (false, MAX_ENHANCED as usize),
        };
        let index = cqe.wqe_counter.get();
        if !is_plain(cqe) {
            if self.waiting.is_empty() {
                self.title = None;
            }
            return false;
        }
        let fits = first
            || self.waiting.len() < most
                && self.title.is_some_and(|title| self.is_alike(&title, cqe));
        if fits {
            if first {
                self.title = Some(*cqe);
            }
            self.waiting.push(*cqe);
        } else if self.waiting.is_empty() {
            // It is written uncompressed, as the title of those that follow.
            self.title = Some(*cqe);
        } else {
            return false;
        }
        self.next = index.wrapping_add(1);
        fits
    }

    /// Makes the next completion of the enhanced layout a title. Programs (UCX) mark the slots of a
    /// block with the signature of its title, which is the number of the lap.
    pub(crate) fn end_lap(&mut self) {
        if self.layout == CompressionLayout::Enhanced {
            self.title = None;
        }
    }

    /// Returns whether `title` and a mini CQE represent all of `cqe`.
    fn is_alike(&self, title: &Cqe64, cqe: &Cqe64) -> bool {
        mini(cqe, self.format).expand(title, self.format, self.next, 0) == *cqe
    }

    /// Ends the block and returns its entries, in the order of writing, with slots counted from
    /// that of the first completion held back.
    pub(crate) fn close(&mut self) -> Vec<(u32, Slot)> {
        let waiting = std::mem::take(&mut self.waiting);
        let minis: Vec<MiniCqe> = waiting.iter().map(|cqe| mini(cqe, self.format)).collect();
        let slots = match (self.layout, &waiting[..]) {
            (_, []) => Vec::new(),
            (_, &[only]) => {
                self.title = Some(only);
                vec![(0, Slot::Entry(only))]
            }
            (CompressionLayout::Enhanced, block) => {
                let mut slot: Cqe64 = transmute!(array(&minis));
                slot.op_own = (block.len() as u8 - 1) << 4 | CqeFormat::Compressed.bits();
                vec![(0, Slot::Entry(slot))]
            }
            (CompressionLayout::Basic, &[title, ..]) => {
                let arrays = minis.chunks(MINI_ARRAY).enumerate().map(|(number, minis)| {
                    let slot = if number == 0 { 1 } else { number * MINI_ARRAY };
                    (slot as u32, Slot::Array(array(minis)))
                });
                let mut title = title;
                title.byte_count = (minis.len() as u32).into();
                title.op_own |= CqeFormat::Compressed.bits();
                // The title last: software polls its owner byte.
                arrays.chain([(0, Slot::Entry(title))]).collect()
            }
        };
        if self.layout == CompressionLayout::Basic {
            self.title = None;
        }
        slots
    }
}

/// Returns whether `cqe` reports success and nothing else.
fn is_plain(cqe: &Cqe64) -> bool {
    use CqeOpcode::{Requester, ResponderSend, ResponderSendImmediate, ResponderWriteImmediate};
    let opcodes = [Requester, ResponderWriteImmediate, ResponderSend, ResponderSendImmediate];
    cqe.format() == CqeFormat::Plain && opcodes.iter().any(|&opcode| opcode as u8 == cqe.opcode())
}

/// Returns the mini CQE of `cqe`.
fn mini(cqe: &Cqe64, format: MiniFormat) -> MiniCqe {
    let fields = if cqe.opcode() == CqeOpcode::Requester as u8 {
        transmute!(MiniRequester {
            wqe_counter: cqe.wqe_counter,
            opcode: cqe.send_opcode(),
            reserved: 0
        })
    } else {
        let packet = cqe.packet();
        match format {
            MiniFormat::Hash => transmute!(packet.hash),
            MiniFormat::Checksum => {
                transmute!(MiniChecksum { checksum: packet.checksum, ..MiniChecksum::default() })
            }
            // Queues for Ethernet packets have a stride index here; others have it in the checksum
            // field.
            MiniFormat::ChecksumStride => {
                transmute!(MiniChecksum { checksum: packet.checksum, stride: cqe.wqe_counter })
            }
        }
    };
    MiniCqe { fields, byte_count: cqe.byte_count }
}

fn array(minis: &[MiniCqe]) -> MiniArray {
    let mut array = MiniArray::default();
    for (to, from) in array.iter_mut().zip(minis) {
        *to = *from;
    }
    array
}

#[cfg(test)]
mod tests {
    use super::*;
    use barewire_layouts::be::{Be16, Be32};

    fn cqe(opcode: CqeOpcode, index: u16, bytes: u32) -> Cqe64 {
        Cqe64 {
            opcode_qpn: Be32::new(0x48),
            byte_count: Be32::new(bytes),
            wqe_counter: Be16::new(index),
            op_own: (opcode as u8) << 4,
            ..Cqe64::INITIAL
        }
    }

    #[test]
    fn receives_that_count_on_are_one_block() {
        let mut basic = Compression::new(CompressionLayout::Basic, MiniFormat::Hash);
        let cqes: Vec<Cqe64> = (0..10)
            .map(|at| {
                cqe(CqeOpcode::ResponderSend, 65_530_u16.wrapping_add(at), 100 + u32::from(at))
            })
            .collect();
        assert!(cqes[..5].iter().all(|cqe| basic.offer(cqe)));
        // 65535 precedes 0; 7 does not.
        assert!(!basic.offer(&cqe(CqeOpcode::ResponderSend, 7, 1)));
        assert_eq!(basic.waiting(), 5);
        let [(1, Slot::Array(minis)), (0, Slot::Entry(title))] = basic.close()[..] else {
            panic!("an array and a title")
        };
        assert_eq!((title.basic_count(), title.op_own, title.wqe_counter.get()), (5, 0x2c, 65_530));
        for (at, cqe) in cqes[..5].iter().enumerate() {
            let told = minis[at].expand(&title, MiniFormat::Hash, 65_530 + at as u16, 0);
            assert_eq!(told, *cqe);
        }
        assert!(basic.offer(&cqe(CqeOpcode::ResponderSend, 7, 1)));
        assert_eq!(basic.close(), [(0, Slot::Entry(cqe(CqeOpcode::ResponderSend, 7, 1)))]);
    }

    #[test]
    fn arrays_lie_where_their_completions_would() {
        let mut basic = Compression::new(CompressionLayout::Basic, MiniFormat::Checksum);
        assert!((0..MAX_BASIC as u16).all(|at| basic.offer(&cqe(CqeOpcode::Requester, at * 3, 0))));
        assert!(!basic.offer(&cqe(CqeOpcode::Requester, 0, 0)));
        let slots = basic.close();
        assert_eq!(
            slots.iter().map(|slot| slot.0).collect::<Vec<_>>(),
            [1, 8, 16, 24, 32, 40, 48, 56, 0]
        );
    }

    #[test]
    fn what_differs_in_more_is_not_alike() {
        let title = cqe(CqeOpcode::ResponderSendImmediate, 4, 1);
        for other in [
            Cqe64 { opcode_qpn: Be32::new(0x49), ..cqe(CqeOpcode::ResponderSendImmediate, 5, 1) },
            Cqe64 { immediate: Be32::new(1), ..cqe(CqeOpcode::ResponderSendImmediate, 5, 1) },
            Cqe64 { op_own: 0x32, ..cqe(CqeOpcode::ResponderSendImmediate, 5, 1) },
            Cqe64 { op_own: 0x34, ..cqe(CqeOpcode::ResponderSendImmediate, 5, 1) },
            cqe(CqeOpcode::ResponderSend, 5, 1),
            cqe(CqeOpcode::ResponderError, 5, 1),
            cqe(CqeOpcode::ResponderSendImmediate, 4, 1),
        ] {
            let mut basic = Compression::new(CompressionLayout::Basic, MiniFormat::Hash);
            assert!(basic.offer(&title) && !basic.offer(&other), "{other:?}");
            assert_eq!(basic.close(), [(0, Slot::Entry(title))]);
        }
    }

    #[test]
    fn an_enhanced_block_follows_its_title() {
        let mut enhanced =
            Compression::new(CompressionLayout::Enhanced, MiniFormat::ChecksumStride);
        // The title is not held back.
        assert!(!enhanced.offer(&cqe(CqeOpcode::ResponderSend, 0, 9)));
        assert_eq!(enhanced.waiting(), 0);
        assert!((1..8).all(|at| enhanced.offer(&cqe(CqeOpcode::ResponderSend, at, 9))));
        assert!(!enhanced.offer(&cqe(CqeOpcode::ResponderSend, 8, 9)));
        let count = |slots: &[(u32, Slot)]| match slots {
            [(0, Slot::Entry(block))] if block.is_compressed() => block.enhanced_count(),
            other => panic!("{other:?}"),
        };
        assert_eq!(count(&enhanced.close()), 7);
        // The next block has the same title.
        assert!((8..10).all(|at| enhanced.offer(&cqe(CqeOpcode::ResponderSend, at, 9))));
        assert_eq!(count(&enhanced.close()), 2);
        // A single completion is written uncompressed, and becomes a title.
        assert!(enhanced.offer(&cqe(CqeOpcode::ResponderSend, 10, 9)));
        assert_eq!(enhanced.close(), [(0, Slot::Entry(cqe(CqeOpcode::ResponderSend, 10, 9)))]);
        // No block spans an error.
        assert!(!enhanced.offer(&cqe(CqeOpcode::ResponderError, 11, 9)));
        assert!(!enhanced.offer(&cqe(CqeOpcode::ResponderSend, 11, 9)));
        assert!(enhanced.offer(&cqe(CqeOpcode::ResponderSend, 12, 9)));
    }
}
