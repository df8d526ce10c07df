//! Page fault events: a device waits for pages of memory that is paged in on demand.
//!
//! Sources: linux device.h `struct mlx5_eqe_page_fault`, `enum wqe_page_fault_type`,
//! `MLX5_PFAULT_SUBTYPE_*`; odp.c `mlx5_ib_page_fault_resume`. The third form, of devices that
//! report faults by memory key and address (`MLX5_PFAULT_SUBTYPE_MEMORY`), is not here.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::be::{Be16, Be32, Be64};
use crate::eqe::{Eqe, EventType};

/// The sub-type of an event that names a WQE.
pub const SUBTYPE_WQE: u8 = 0;
/// The sub-type of an event that names remote memory.
pub const SUBTYPE_RDMA: u8 = 1;

/// Tokens, and numbers of queues.
const MASK_24: u32 = 0x00ff_ffff;

bitflags::bitflags! {
    /// What waits: a receive WQE of a shared queue if no flag is set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FaultKind: u8 {
        /// A send queue.
        const REQUESTER = 1 << 0;
        /// The memory is to be written; of a responder without [`FaultKind::RDMA`], by a receive.
        const WRITE = 1 << 1;
        /// A responder, for the memory that a request names.
        const RDMA = 1 << 2;
    }
}

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFault {
    /// At the memory of a WQE.
    Wqe {
        /// What waits.
        kind: FaultKind,
        /// Bytes of the WQE's memory that are done.
        committed: u32,
        /// Index of the WQE in its ring.
        index: u16,
        /// Bytes of the packet that waits.
        packet: u16,
        /// Names the fault in the answer.
        token: u32,
        /// The queue pair, or the shared receive queue.
        queue: u32,
    },
    /// At the memory that a peer's request names.
    Rdma {
        /// What waits.
        kind: FaultKind,
        /// Bytes of the operation that are done.
        committed: u32,
        /// The key.
        rkey: u32,
        /// Bytes of the packet that waits.
        packet: u16,
        /// Bytes of the operation.
        length: u32,
        /// Address of the operation.
        address: u64,
        /// Names the fault in the answer.
        token: u32,
    },
}

/// The data of an event with [`SUBTYPE_WQE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WqeData {
    committed: Be32,
    reserved_4: [u8; 2],
    index: Be16,
    reserved_8: [u8; 2],
    packet: Be16,
    token: Be32,
    reserved_16: [u8; 8],
    kind_queue: Be32,
}

/// The data of an event with [`SUBTYPE_RDMA`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RdmaData {
    committed: Be32,
    rkey: Be32,
    reserved_8: [u8; 2],
    packet: Be16,
    length: Be32,
    address: Be64,
    kind_token: Be32,
}

const_assert_eq!(size_of::<WqeData>(), 28);
const_assert_eq!(core::mem::offset_of!(WqeData, index), 6);
const_assert_eq!(core::mem::offset_of!(WqeData, packet), 10);
const_assert_eq!(core::mem::offset_of!(WqeData, token), 12);
const_assert_eq!(core::mem::offset_of!(WqeData, kind_queue), 24);
const_assert_eq!(size_of::<RdmaData>(), 28);
const_assert_eq!(core::mem::offset_of!(RdmaData, rkey), 4);
const_assert_eq!(core::mem::offset_of!(RdmaData, packet), 10);
const_assert_eq!(core::mem::offset_of!(RdmaData, length), 12);
const_assert_eq!(core::mem::offset_of!(RdmaData, address), 16);
const_assert_eq!(core::mem::offset_of!(RdmaData, kind_token), 24);

impl PageFault {
    /// The three parts that [`PageFaultResumeIn`](crate::command::page_fault::PageFaultResumeIn)
    /// repeats: kind, queue and token. An event without a queue has its token there.
    pub const fn resumed_by(&self) -> (FaultKind, u32, u32) {
        match *self {
            Self::Wqe { kind, queue, token, .. } => (kind, queue, token),
            Self::Rdma { kind, token, .. } => (kind, token, token),
        }
    }
}

const fn tagged(kind: FaultKind, number: u32) -> Be32 {
    Be32::new((kind.bits() as u32) << 24 | number & MASK_24)
}

fn untagged(word: Be32) -> (FaultKind, u32) {
    (FaultKind::from_bits_truncate((word.get() >> 24) as u8), word.get() & MASK_24)
}

impl Eqe {
    /// A page fault.
    pub const fn page_fault(fault: PageFault) -> Self {
        match fault {
            PageFault::Wqe { kind, committed, index, packet, token, queue } => {
                let data = WqeData {
                    committed: Be32::new(committed),
                    reserved_4: [0; 2],
                    index: Be16::new(index),
                    reserved_8: [0; 2],
                    packet: Be16::new(packet),
                    token: Be32::new(token & MASK_24),
                    reserved_16: [0; 8],
                    kind_queue: tagged(kind, queue),
                };
                Self::new(EventType::PageFault, SUBTYPE_WQE, transmute!(data))
            }
            PageFault::Rdma { kind, committed, rkey, packet, length, address, token } => {
                let data = RdmaData {
                    committed: Be32::new(committed),
                    rkey: Be32::new(rkey),
                    reserved_8: [0; 2],
                    packet: Be16::new(packet),
                    length: Be32::new(length),
                    address: Be64::new(address),
                    kind_token: tagged(kind, token),
                };
                Self::new(EventType::PageFault, SUBTYPE_RDMA, transmute!(data))
            }
        }
    }

    /// The page fault that the entry reports. `None` if it has another type, or another sub-type
    /// than this module knows.
    pub fn fault(&self) -> Option<PageFault> {
        if self.event_type != EventType::PageFault as u8 {
            return None;
        }
        match self.sub_type {
            SUBTYPE_WQE => {
                let data: WqeData = transmute!(self.data);
                let (kind, queue) = untagged(data.kind_queue);
                Some(PageFault::Wqe {
                    kind,
                    committed: data.committed.get(),
                    index: data.index.get(),
                    packet: data.packet.get(),
                    // PAGE_FAULT_RESUME, which repeats it, has 24 bits for it.
                    token: data.token.get() & MASK_24,
                    queue,
                })
            }
            SUBTYPE_RDMA => {
                let data: RdmaData = transmute!(self.data);
                let (kind, token) = untagged(data.kind_token);
                Some(PageFault::Rdma {
                    kind,
                    committed: data.committed.get(),
                    rkey: data.rkey.get(),
                    packet: data.packet.get(),
                    length: data.length.get(),
                    address: data.address.get(),
                    token,
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WQE: PageFault = PageFault::Wqe {
        kind: FaultKind::WRITE,
        committed: 0x0102_0304,
        index: 0x1112,
        packet: 0x2122,
        token: 0x31_3233,
        queue: 0x41_4243,
    };
    const RDMA: PageFault = PageFault::Rdma {
        kind: FaultKind::RDMA.union(FaultKind::WRITE),
        committed: 0x0102_0304,
        rkey: 0x1112_1314,
        packet: 0x2122,
        length: 0x3132_3334,
        address: 0x4142_4344_4546_4748,
        token: 0x51_5253,
    };

    #[test]
    fn page_faults_byte_for_byte() {
        let bytes = Eqe::page_fault(WQE).to_bytes();
        assert_eq!((bytes[1], bytes[3]), (0x0c, 0));
        let want = [
            1, 2, 3, 4, 0, 0, 0x11, 0x12, 0, 0, 0x21, 0x22, 0, 0x31, 0x32, 0x33, 0, 0, 0, 0, 0, 0,
            0, 0, 2, 0x41, 0x42, 0x43,
        ];
        assert_eq!(bytes[0x20..0x3c], want);
        let bytes = Eqe::page_fault(RDMA).to_bytes();
        assert_eq!((bytes[1], bytes[3]), (0x0c, 1));
        let want = [
            1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0, 0, 0x21, 0x22, 0x31, 0x32, 0x33, 0x34, 0x41,
            0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 6, 0x51, 0x52, 0x53,
        ];
        assert_eq!(bytes[0x20..0x3c], want);
    }

    #[test]
    fn events_tell_their_faults() {
        for fault in [WQE, RDMA] {
            let bytes = Eqe::page_fault(fault).to_bytes();
            assert_eq!(Eqe::read_from_bytes(&bytes).unwrap().fault(), Some(fault));
        }
        assert_eq!(WQE.resumed_by(), (FaultKind::WRITE, 0x41_4243, 0x31_3233));
        let kind = FaultKind::RDMA | FaultKind::WRITE;
        assert_eq!(RDMA.resumed_by(), (kind, 0x51_5253, 0x51_5253));
        assert_eq!(Eqe::completion(1).fault(), None);
        let memory = Eqe { sub_type: 2, ..Eqe::page_fault(WQE) };
        assert_eq!(memory.fault(), None);
    }
}
