//! Completion queues.

use barewire_layouts::command::cq::{CompressionLayout, CqStatus, CqeSize};
use barewire_layouts::cqe::{Cqe64, CqeFormat, FORMAT, OWNER, SOLICITED};
use zerocopy::IntoBytes;

use super::compress::Slot;
use super::{Compression, Inline, Notify};
use crate::memory::Window;

/// A completion queue: a ring of entries in user memory that the device writes and software reads.
#[derive(Debug)]
pub(crate) struct Cq {
    /// The ring: a power of two of entries of `entry` bytes, in a umem that this queue keeps
    /// registered.
    pub(crate) ring: Window,
    /// Consumer counter and arm word, in a umem that this queue keeps registered.
    pub(crate) doorbell: Window,
    /// log2 of the number of entries.
    pub(crate) log_size: u8,
    /// Size of an entry.
    pub(crate) entry: CqeSize,
    /// Software guarantees that the ring has room.
    pub(crate) ignore_overrun: bool,
    /// Entries written or held back, modulo 2^32.
    pub(crate) producer: u32,
    /// Compression of entries, if enabled.
    pub(crate) compression: Option<Box<Compression>>,
    /// Whether the queue has not overrun.
    pub(crate) status: CqStatus,
    /// The event queue and its moderation, if any.
    pub(crate) notify: Option<Notify>,
    /// The UAR page that arms it.
    pub(crate) uar: u32,
    /// The umem of the ring.
    pub(crate) ring_umem: u32,
    /// The umem of the doorbell record, and the offset there.
    pub(crate) doorbell_umem: (u32, u64),
    /// Queue pairs that complete to it, counted once for each direction.
    pub(crate) users: u32,
}

/// A completion was lost because the ring was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

impl Cq {
    /// The counters in the doorbell record and the context have 24 bits.
    pub(crate) const COUNTER: u32 = 0x00ff_ffff;

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u32 {
        1 << self.log_size
    }

    /// Returns the entries that software consumed, from the doorbell record.
    pub(crate) fn consumer(&self) -> u32 {
        self.doorbell.load_be32(0) & Self::COUNTER
    }

    /// Returns the last request for an event, from the doorbell record.
    pub(crate) fn arm_word(&self) -> u32 {
        self.doorbell.load_be32(4)
    }

    /// Notes that a CQ doorbell of the UAR page that arms this queue was rung.
    pub(crate) fn rung(&mut self) {
        let word = self.arm_word();
        if let Some(notify) = &mut self.notify {
            notify.rung(word);
        }
    }

    /// Returns the bytes of data that an entry can hold.
    pub(crate) fn inline_room(&self) -> usize {
        match self.entry {
            CqeSize::Bytes64 => Inline::SMALL,
            CqeSize::Bytes128 => Inline::LARGE,
        }
    }

    /// Returns the entries that software has not consumed.
    pub(crate) fn waiting(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer()) & Self::COUNTER
    }

    /// Returns the entries that wait for [`Cq::close_block`].
    pub(crate) fn open_block(&self) -> u32 {
        self.compression.as_ref().map_or(0, |compression| compression.waiting())
    }

    /// Writes the entries held back for compression.
    pub(crate) fn close_block(&mut self) {
        let Some(compression) = &mut self.compression else { return };
        let first = self.producer.wrapping_sub(compression.waiting());
        for (slot, content) in compression.close() {
            let number = first.wrapping_add(slot);
            match content {
                Slot::Entry(cqe) => self.write_entry(number, &cqe),
                Slot::Array(minis) => {
                    if let Some(slot) = self.slot(number) {
                        slot.write(minis.as_bytes());
                    }
                }
            }
        }
    }

    /// Writes the next entry and sets its owner bit.
    ///
    /// An overrun stops the queue and is reported once; later entries are dropped without a report.
    pub(crate) fn push(&mut self, cqe: Cqe64) -> Result<(), Overrun> {
        self.push_with(cqe, None)
    }

    /// Writes the next entry with inline data, for which [`Cq::inline_room`] has room.
    pub(crate) fn push_with(
        &mut self,
        mut cqe: Cqe64,
        data: Option<&Inline>,
    ) -> Result<(), Overrun> {
        if self.status != CqStatus::Ok {
            return Ok(());
        }
        if !self.ignore_overrun && self.waiting() >= self.entries() {
            self.status = CqStatus::Overflow;
            return Err(Overrun);
        }
        if let Some(data) = data {
            cqe.op_own = cqe.op_own & !FORMAT | data.format().bits();
            match data.format() {
                CqeFormat::Inline64 => {
                    // The first half of a 128-byte entry, which is never compressed.
                    let index = (self.producer & (self.entries() - 1)) as usize;
                    if let Some(first) =
                        self.ring.slice(index * self.entry.bytes(), size_of::<Cqe64>())
                    {
                        first.write(data.bytes());
                    }
                }
                _ => cqe.metadata[..data.bytes().len()].copy_from_slice(data.bytes()),
            }
        }
        if !self.waits(&cqe) {
            self.write_entry(self.producer, &cqe);
        }
        self.producer = self.producer.wrapping_add(1);
        if let Some(notify) = &mut self.notify {
            notify.wrote(self.producer, cqe.op_own & SOLICITED != 0);
        }
        Ok(())
    }

    /// Holds back `cqe` for compression, if possible. Writes a block that it does not fit first.
    fn waits(&mut self, cqe: &Cqe64) -> bool {
        let starts_lap = self.producer & (self.entries() - 1) == 0;
        if starts_lap {
            self.close_block();
        }
        let Some(compression) = &mut self.compression else { return false };
        if starts_lap {
            compression.end_lap();
        }
        if compression.offer(cqe) {
            return true;
        }
        if compression.waiting() == 0 {
            return false;
        }
        self.close_block();
        self.compression.as_mut().is_some_and(|compression| compression.offer(cqe))
    }

    /// Returns the offset of entry `number`.
    fn slot(&self, number: u32) -> Option<Window> {
        let index = (number & (self.entries() - 1)) as usize;
        // A 128-byte entry has the 64-byte one in its second half.
        self.ring.slice((index + 1) * self.entry.bytes() - size_of::<Cqe64>(), size_of::<Cqe64>())
    }

    /// Writes entry `number` to its slot. The last word has the owner bit; it is stored last and
    /// releases the others.
    fn write_entry(&self, number: u32, cqe: &Cqe64) {
        let lap = (number >> self.log_size) as u8;
        let Some(slot) = self.slot(number) else { return };
        let mut cqe = *cqe;
        match &self.compression {
            Some(compression) if compression.layout == CompressionLayout::Enhanced => {
                cqe.signature = lap;
            }
            _ => {
                cqe.op_own = cqe.op_own & !OWNER | lap & OWNER;
                cqe.signature = 0;
                cqe.signature = signature(&cqe, number);
            }
        }
        slot.write(cqe.as_bytes());
    }
}

/// Returns the signature of entry `number`, whose own is 0: with it, the bytes of the entry and of
/// its number have the exclusive or 0xff, as in 39 published error CQEs of adapters.
fn signature(cqe: &Cqe64, number: u32) -> u8 {
    let number = number.to_ne_bytes();
    !cqe.as_bytes().iter().chain(&number).fold(0_u8, |sum, byte| sum ^ byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::leaked;
    use barewire_layouts::be::{Be16, Be32};
    use barewire_layouts::cqe::CqeOpcode;
    use barewire_layouts::cqe::compressed::MiniFormat;

    fn cq(log_size: u8, entry: CqeSize) -> Cq {
        Cq {
            ring: leaked(entry.bytes() << log_size),
            doorbell: leaked(8),
            log_size,
            entry,
            ignore_overrun: false,
            producer: 0,
            compression: None,
            status: CqStatus::Ok,
            notify: None,
            uar: 0,
            ring_umem: 0,
            doorbell_umem: (0, 0),
            users: 0,
        }
    }

    fn cqe(number: u32) -> Cqe64 {
        Cqe64 { byte_count: Be32::new(number), op_own: 0x03, ..Cqe64::INITIAL }
    }

    /// Counts `count` entries as consumed.
    fn consume(cq: &Cq, count: u32) {
        cq.doorbell.write(&(count & Cq::COUNTER).to_be_bytes());
    }

    #[test]
    fn the_owner_bit_is_the_lap() {
        let mut cq = cq(1, CqeSize::Bytes64);
        for number in 0..9 {
            assert_eq!(cq.push(cqe(number)), Ok(()));
            let index = number as usize % 2;
            let bytes = cq.ring.bytes();
            assert_eq!(bytes[index * 64 + 47], number as u8);
            assert_eq!(bytes[index * 64 + 63], 0x02 | (number / 2 % 2) as u8);
            consume(&cq, number + 1);
        }
    }

    #[test]
    fn an_enhanced_block_and_its_title_are_of_one_lap() {
        let compression = Compression::new(CompressionLayout::Enhanced, MiniFormat::Hash);
        let mut cq = Cq { compression: Some(Box::new(compression)), ..cq(3, CqeSize::Bytes64) };
        let sent = |number: u16| Cqe64 {
            wqe_counter: Be16::new(number),
            op_own: (CqeOpcode::Requester as u8) << 4,
            ..Cqe64::INITIAL
        };
        for number in 0..10 {
            cq.push(sent(number)).unwrap();
            consume(&cq, u32::from(number) + 1);
        }
        cq.close_block();
        let bytes = cq.ring.bytes();
        let entry =
            |slot: usize| (bytes[slot * 64 + 60], bytes[slot * 64 + 61], bytes[slot * 64 + 63]);
        // Completion 8 starts the second lap uncompressed, although it resembles the title.
        assert_eq!(entry(0), (0, 8, 0));
        // Completions 1 to 7 are one block, and 9 is alone.
        assert_eq!(entry(1), (0, 9, 0));
    }

    #[test]
    fn large_entries_fill_the_second_half() {
        let mut cq = cq(1, CqeSize::Bytes128);
        cq.push(cqe(1)).unwrap();
        cq.push(cqe(2)).unwrap();
        let bytes = cq.ring.bytes();
        assert!(bytes[..64].iter().chain(&bytes[128..192]).all(|&byte| byte == 0));
        assert_eq!((bytes[64 + 47], bytes[192 + 47], bytes[255]), (1, 2, 0x02));
    }

    #[test]
    fn an_overrun_is_told_once_and_loses_nothing_that_was_there() {
        let mut cq = cq(1, CqeSize::Bytes64);
        assert_eq!(
            [1, 2, 3, 4].map(|number| cq.push(cqe(number))),
            [Ok(()), Ok(()), Err(Overrun), Ok(())]
        );
        assert_eq!(cq.status, CqStatus::Overflow);
        consume(&cq, 2);
        assert_eq!(cq.push(cqe(5)), Ok(()));
        let bytes = cq.ring.bytes();
        assert_eq!((bytes[47], bytes[64 + 47], cq.producer), (1, 2, 2));
    }

    #[test]
    fn overruns_can_be_ignored() {
        let mut cq = Cq { ignore_overrun: true, ..cq(1, CqeSize::Bytes64) };
        assert!((0..10).all(|number| cq.push(cqe(number)).is_ok()));
        assert_eq!(cq.ring.bytes()[64 + 47], 9);
    }

    #[test]
    fn counters_wrap() {
        for start in [Cq::COUNTER - 2, u32::MAX - 2] {
            let mut cq = Cq { producer: start, ..cq(2, CqeSize::Bytes64) };
            for step in 0..6_u32 {
                consume(&cq, start.wrapping_add(step));
                assert_eq!(cq.push(cqe(step)), Ok(()));
            }
        }
    }
}
