//! Limits of the device: commands check them, and QUERY_HCA_CAP returns them.

use barewire_layouts::command::memic::LOG_UNIT;
use barewire_layouts::doorbell::BLUEFLAME_STRIDE;

/// Protection domains.
pub(crate) const LOG_PDS: u8 = 14;
/// Event queues.
pub(crate) const LOG_EQS: u8 = 5;
/// Completion queues.
pub(crate) const LOG_CQS: u8 = 16;
/// Queue pairs.
pub(crate) const LOG_QPS: u8 = 16;
/// Shared receive queues and receive memory pools.
pub(crate) const LOG_SRQS: u8 = 14;
/// log2 of the maximum number of entries of a tag matching list.
pub(crate) const LOG_TAGS: u8 = 12;
/// Domains of extended reliable connections.
pub(crate) const LOG_XRCDS: u8 = 10;
/// Multicast groups: over UDP, each has a socket.
pub(crate) const LOG_GROUPS: u8 = 6;
/// Targets of dynamic connections.
pub(crate) const LOG_DCTS: u8 = 10;
/// log2 of the channels of a DC initiator, and of those in error that stop it.
pub(crate) const LOG_STREAMS: u8 = 8;
/// Most connections of all targets of a device.
pub(crate) const DC_CONTEXTS: usize = 1 << 14;
/// Memory keys.
pub(crate) const LOG_MKEYS: u8 = 20;
/// User memory registrations.
pub(crate) const LOG_UMEMS: u8 = 20;
/// UAR pages.
pub(crate) const LOG_UARS: u8 = 10;

/// Protection domains.
pub(crate) const PDS: usize = 1 << LOG_PDS;
/// Event queues.
pub(crate) const EQS: usize = 1 << LOG_EQS;
/// Completion queues.
pub(crate) const CQS: usize = 1 << LOG_CQS;
/// Queue pairs.
pub(crate) const QPS: usize = 1 << LOG_QPS;
/// Shared receive queues and receive memory pools.
pub(crate) const SRQS: usize = 1 << LOG_SRQS;
/// Domains of extended reliable connections.
pub(crate) const XRCDS: usize = 1 << LOG_XRCDS;
/// Multicast groups.
pub(crate) const GROUPS: usize = 1 << LOG_GROUPS;
/// Queue pairs of a multicast group, as on a ConnectX.
pub(crate) const GROUP_MEMBERS: usize = 240;
/// Targets of dynamic connections.
pub(crate) const DCTS: usize = 1 << LOG_DCTS;
/// Memory keys.
pub(crate) const MKEYS: usize = 1 << LOG_MKEYS;
/// User memory registrations.
pub(crate) const UMEMS: usize = 1 << LOG_UMEMS;
/// UAR pages.
pub(crate) const UARS: usize = 1 << LOG_UARS;

/// log2 of the maximum number of ranges of an indirect memory key.
pub(crate) const LOG_RANGES: u8 = 16;
/// Maximum number of ranges of an indirect memory key, and of one access through such keys.
pub(crate) const RANGES: usize = 1 << LOG_RANGES;
/// Maximum nesting of indirect keys in an access.
pub(crate) const INDIRECTION: u8 = 4;
/// Counter sets of queues.
pub(crate) const COUNTER_SETS: usize = 32;

/// log2 of the maximum length of a user memory registration or a memory key: all addresses of a
/// process (Linux Documentation/arch/arm64/memory.rst and arch/x86/x86_64/mm.rst).
pub(crate) const LOG_UMEM_BYTES: u8 = if cfg!(target_arch = "aarch64") { 48 } else { 47 };
/// Maximum length of a user memory registration.
pub(crate) const UMEM_BYTES: usize = 1 << LOG_UMEM_BYTES;

/// log2 of the maximum number of entries of an event queue.
pub(crate) const LOG_EQ_ENTRIES: u8 = 22;
/// log2 of the maximum number of entries of a completion queue.
pub(crate) const LOG_CQ_ENTRIES: u8 = 22;
/// log2 of the maximum number of WQEBBs of a send ring, and of WQEs of a receive ring.
pub(crate) const LOG_WQ_ENTRIES: u8 = 15;
/// Maximum length of a send WQE: 63 units of 16 bytes, rounded up.
pub(crate) const SEND_WQE_BYTES: u16 = 1024;
/// Maximum length of a receive WQE.
pub(crate) const RECEIVE_WQE_BYTES: u16 = 512;
/// log2 of the maximum length of a message.
pub(crate) const LOG_MESSAGE_BYTES: u8 = 30;
/// log2 of the maximum number of outstanding reads and atomics of a queue pair, in either role.
pub(crate) const LOG_RESPONDER_RESOURCES: u8 = 4;
/// Entries of the GID table.
pub(crate) const GIDS: u16 = 16;
/// Maximum number of completions of a compressed block.
pub(crate) const COMPRESSED_CQES: u16 = 64;
/// Maximum number of ports.
pub(crate) const PORTS: usize = 2;
/// Bytes of memory on the device, as on a ConnectX.
pub(crate) const DEVICE_MEMORY: usize = 128 << 10;
/// Address of the first in the BAR, behind the UAR pages.
pub(crate) const DEVICE_MEMORY_START: u64 = 1 << 25;
/// log2 of the largest alignment of such memory in units, a page.
pub(crate) const LOG_DEVICE_MEMORY_ALIGNMENT: u8 = LOG_PAGE_BYTES - LOG_UNIT;
/// log2 of the smallest page.
pub(crate) const LOG_PAGE_BYTES: u8 = 12;

/// log2 of the bytes of each range of a KSM list. The kernel's drivers use devices from 2^8 on.
pub(crate) const LOG_KSM_BYTES: core::ops::RangeInclusive<u8> = 8..=63;
/// log2 of the length of a BlueFlame register, both halves.
pub(crate) const LOG_BLUEFLAME_BYTES: u8 = BLUEFLAME_STRIDE.trailing_zeros() as u8;
