//! Send WQEs of tests.

use barewire_layouts::be::Be64;
use barewire_layouts::wqe::{
    AddressVector, AtomicSegment, CompactAddressVector, ControlFlags, ControlSegment, DS,
    DataSegment, InlineHeader, Opcode, RemoteAddressSegment, XrcSegment, extended_atomic_modifier,
};
use zerocopy::IntoBytes;

/// A send WQE being written.
#[derive(Clone)]
pub struct Wqe {
    opcode: u8,
    flags: ControlFlags,
    immediate: u32,
    modifier: u8,
    stream: u16,
    body: Vec<u8>,
}

impl Wqe {
    pub fn new(opcode: Opcode) -> Self {
        let flags = ControlFlags::COMPLETION;
        let (immediate, modifier, stream) = (0, 0, 0);
        Self { opcode: opcode as u8, flags, immediate, modifier, stream, body: Vec::new() }
    }

    pub fn remote(mut self, address: u64, rkey: u32) -> Self {
        self.body.extend(RemoteAddressSegment::new(address, rkey).as_bytes());
        self
    }

    pub fn atomic(mut self, swap_or_add: u64, compare: u64) -> Self {
        let segment =
            AtomicSegment { swap_or_add: Be64::new(swap_or_add), compare: Be64::new(compare) };
        self.body.extend(segment.as_bytes());
        self
    }

    /// The operands of a masked atomic on `1 << log_bytes` bytes.
    pub fn masked(mut self, log_bytes: u8, operands: &[u8]) -> Self {
        self.modifier = extended_atomic_modifier(log_bytes);
        self.body.extend(operands);
        self
    }

    /// The shared receive queue of an extended reliable connection.
    pub fn shared_queue(mut self, srqn: u32) -> Self {
        self.body.extend(XrcSegment::new(srqn).as_bytes());
        self
    }

    /// Where a datagram, or a request of dynamic connections, goes.
    pub fn addressed(mut self, address: &AddressVector) -> Self {
        self.body.extend(address.as_bytes());
        self
    }

    /// The same, in the form of 16 bytes.
    pub fn via_lid(mut self, address: &CompactAddressVector) -> Self {
        self.body.extend(address.as_bytes());
        self
    }

    pub fn data(mut self, address: u64, length: usize, lkey: u32) -> Self {
        if length > 0 {
            self.body.extend(DataSegment::new(address, length as u32, lkey).as_bytes());
        }
        self
    }

    pub fn inline(mut self, bytes: &[u8]) -> Self {
        self.body.extend(InlineHeader::new(bytes.len() as u32).as_bytes());
        self.body.extend(bytes);
        self.body.resize(self.body.len().next_multiple_of(DS), 0);
        self
    }

    pub fn immediate(mut self, immediate: u32) -> Self {
        self.immediate = immediate;
        self
    }

    /// Any bytes as the next segments.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.body.extend(bytes);
        self
    }

    /// The stream of a DC initiator.
    pub fn stream(mut self, stream: u16) -> Self {
        self.stream = stream;
        self
    }

    pub fn unsignalled(mut self) -> Self {
        self.flags.remove(ControlFlags::COMPLETION);
        self
    }

    pub fn flags(mut self, flags: ControlFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// The bytes at ring index `index` of queue pair `qpn`.
    pub fn bytes(&self, index: u16, qpn: u32) -> Vec<u8> {
        let ds = 1 + self.body.len().div_ceil(DS) as u32;
        let control = ControlSegment::new(Opcode::Nop, index, qpn, ds, self.flags, self.immediate);
        let mut bytes = control.with_stream(self.stream).as_bytes().to_vec();
        (bytes[0], bytes[3]) = (self.modifier, self.opcode);
        bytes.extend(&self.body);
        bytes
    }
}
