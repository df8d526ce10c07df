//! Opcodes of packets: the transport service, the operation, and which headers each carries.

use super::{
    Aeth, AtomicAckEth, AtomicEth, DcEth, Deth, Ieth, ImmDt, MaskedAtomicEth, Reth, XrcEth,
};
use crate::prm::field_enum;

field_enum! {
    /// The transport service of a packet: the upper three bits of its opcode (IBTA table 38).
    Transport: u8, "transport service" {
        /// Reliable connected.
        Rc = 0b000, "RC";
        /// Unreliable connected.
        Uc = 0b001, "UC";
        /// Unreliable datagram.
        Ud = 0b011, "UD";
        /// Congestion notification (IBTA annex A17.9.3): [`CONGESTION_NOTIFICATION`] is its only
        /// operation.
        Congestion = 0b100, "CNP";
        /// Extended reliable connected.
        Xrc = 0b101, "XRC";
        /// Reserved for manufacturers. Here: the masked atomics of every reliable service.
        Vendor = 0b110, "vendor";
        /// Left to manufacturers. Here: dynamically connected, see [`DcEth`].
        Dc = 0b111, "DC";
    }
}

/// The operation of a packet of [`Transport::Congestion`]: 0x81 is the whole opcode.
pub const CONGESTION_NOTIFICATION: u8 = 0x01;
/// Bytes that follow the base transport header of a congestion notification; all zero.
pub const CONGESTION_RESERVED: usize = 16;

field_enum! {
    /// The operation of a packet: the lower five bits of its opcode, or the opcode of a reliable
    /// connected one (IBTA table 38).
    BthOpcode: u8, "RC packet opcode" {
        /// First packet of a send.
        SendFirst = 0x00, "SEND first";
        /// A packet inside a send.
        SendMiddle = 0x01, "SEND middle";
        /// Last packet of a send.
        SendLast = 0x02, "SEND last";
        /// Last packet of a send, with immediate.
        SendLastImmediate = 0x03, "SEND last with immediate";
        /// A send of one packet.
        SendOnly = 0x04, "SEND only";
        /// A send of one packet, with immediate.
        SendOnlyImmediate = 0x05, "SEND only with immediate";
        /// First packet of an RDMA write.
        WriteFirst = 0x06, "RDMA WRITE first";
        /// A packet inside an RDMA write.
        WriteMiddle = 0x07, "RDMA WRITE middle";
        /// Last packet of an RDMA write.
        WriteLast = 0x08, "RDMA WRITE last";
        /// Last packet of an RDMA write, with immediate.
        WriteLastImmediate = 0x09, "RDMA WRITE last with immediate";
        /// An RDMA write of one packet.
        WriteOnly = 0x0a, "RDMA WRITE only";
        /// An RDMA write of one packet, with immediate.
        WriteOnlyImmediate = 0x0b, "RDMA WRITE only with immediate";
        /// Asks for an RDMA read.
        ReadRequest = 0x0c, "RDMA READ request";
        /// First packet of a read response.
        ReadResponseFirst = 0x0d, "RDMA READ response first";
        /// A packet inside a read response.
        ReadResponseMiddle = 0x0e, "RDMA READ response middle";
        /// Last packet of a read response.
        ReadResponseLast = 0x0f, "RDMA READ response last";
        /// A read response of one packet.
        ReadResponseOnly = 0x10, "RDMA READ response only";
        /// Acknowledgment, positive or negative.
        Acknowledge = 0x11, "acknowledge";
        /// An atomic response.
        AtomicAcknowledge = 0x12, "atomic acknowledge";
        /// Compare and swap.
        CompareSwap = 0x13, "compare and swap";
        /// Fetch and add.
        FetchAdd = 0x14, "fetch and add";
        /// Last packet of a send that invalidates a key.
        SendLastInvalidate = 0x16, "SEND last with invalidate";
        /// A send of one packet that invalidates a key.
        SendOnlyInvalidate = 0x17, "SEND only with invalidate";
        /// Dynamic connections only: an initiator asks a target for a connection.
        Connect = 0x18, "connect";
        /// Dynamic connections only: the target has created the connection.
        Accept = 0x19, "accept";
        /// Dynamic connections only: the target has no connection for the initiator, or ends it
        /// (CNAK).
        Refuse = 0x1a, "refuse";
        /// Dynamic connections only: the initiator ends the connection.
        Disconnect = 0x1b, "disconnect";
        /// Dynamic connections only: the connection is no more.
        Disconnected = 0x1c, "disconnected";
        /// Dynamic connections only: the initiator still wants the connection.
        KeepAlive = 0x1d, "keep alive";
    }
}

bitflags::bitflags! {
    /// The extended headers of a packet, in the order in which they follow the [`Bth`](super::Bth)
    /// unless noted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Headers: u16 {
        /// [`Deth`].
        const DETH = 1 << 0;
        /// [`Reth`].
        const RETH = 1 << 1;
        /// [`AtomicEth`].
        const ATOMIC_ETH = 1 << 2;
        /// [`MaskedAtomicEth`].
        const MASKED_ATOMIC_ETH = 1 << 3;
        /// [`Aeth`].
        const AETH = 1 << 4;
        /// [`AtomicAckEth`].
        const ATOMIC_ACK_ETH = 1 << 5;
        /// [`ImmDt`].
        const IMM_DT = 1 << 6;
        /// [`Ieth`].
        const IETH = 1 << 7;
        /// [`XrcEth`]: before all others.
        const XRC_ETH = 1 << 8;
        /// [`DcEth`]: alone.
        const DC_ETH = 1 << 9;
    }
}

impl Headers {
    /// Bytes of all the headers in the set.
    pub const fn bytes(self) -> usize {
        let mut bytes = 0;
        let mut index = 0;
        while index < HEADER_BYTES.len() {
            if self.bits() & 1 << index != 0 {
                bytes += HEADER_BYTES[index];
            }
            index += 1;
        }
        bytes
    }
}

/// Bytes of the extended headers, by bit of [`Headers`].
const HEADER_BYTES: [usize; 10] = [
    size_of::<Deth>(),
    size_of::<Reth>(),
    size_of::<AtomicEth>(),
    size_of::<MaskedAtomicEth>(),
    size_of::<Aeth>(),
    size_of::<AtomicAckEth>(),
    size_of::<ImmDt>(),
    size_of::<Ieth>(),
    size_of::<XrcEth>(),
    size_of::<DcEth>(),
];

impl BthOpcode {
    /// The extended headers of a packet of `transport` with this operation; `None` if `transport`
    /// has no such operation (IBTA table 38).
    pub const fn headers_in(self, transport: Transport) -> Option<Headers> {
        match (transport, self) {
            (Transport::Dc, _) => Some(self.headers()),
            (Transport::Rc, _) if !self.is_connection() => Some(self.headers()),
            (Transport::Xrc, _) if self.is_response() => Some(self.headers()),
            (Transport::Xrc, _) if !self.is_connection() => {
                Some(Headers::XRC_ETH.union(self.headers()))
            }
            (Transport::Uc, _) if self as u8 <= Self::WriteOnlyImmediate as u8 => {
                Some(self.headers())
            }
            (Transport::Ud, Self::SendOnly | Self::SendOnlyImmediate) => {
                Some(Headers::DETH.union(self.headers()))
            }
            (Transport::Vendor, Self::CompareSwap | Self::FetchAdd) => {
                Some(Headers::MASKED_ATOMIC_ETH)
            }
            (Transport::Congestion, _) if self as u8 == CONGESTION_NOTIFICATION => {
                Some(Headers::empty())
            }
            _ => None,
        }
    }

    /// The extended headers of a reliable connected packet with this operation (IBTA table 38).
    pub const fn headers(self) -> Headers {
        match self {
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast
            | Self::SendOnly
            | Self::WriteMiddle
            | Self::WriteLast
            | Self::ReadResponseMiddle => Headers::empty(),
            Self::SendLastImmediate | Self::SendOnlyImmediate | Self::WriteLastImmediate => {
                Headers::IMM_DT
            }
            Self::WriteFirst | Self::WriteOnly | Self::ReadRequest => Headers::RETH,
            Self::WriteOnlyImmediate => Headers::RETH.union(Headers::IMM_DT),
            Self::ReadResponseFirst
            | Self::ReadResponseLast
            | Self::ReadResponseOnly
            | Self::Acknowledge => Headers::AETH,
            Self::AtomicAcknowledge => Headers::AETH.union(Headers::ATOMIC_ACK_ETH),
            Self::CompareSwap | Self::FetchAdd => Headers::ATOMIC_ETH,
            Self::SendLastInvalidate | Self::SendOnlyInvalidate => Headers::IETH,
            Self::Connect
            | Self::Accept
            | Self::Refuse
            | Self::Disconnect
            | Self::Disconnected
            | Self::KeepAlive => Headers::DC_ETH,
        }
    }

    /// Whether the packet goes from responder to requester.
    pub const fn is_response(self) -> bool {
        self as u8 >= Self::ReadResponseFirst as u8 && self as u8 <= Self::AtomicAcknowledge as u8
    }

    /// Whether the packet creates or ends a dynamic connection.
    pub const fn is_connection(self) -> bool {
        self as u8 >= Self::Connect as u8
    }

    /// Whether a message starts with this packet.
    pub const fn is_first(self) -> bool {
        !matches!(
            self,
            Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImmediate
                | Self::SendLastInvalidate
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImmediate
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
        )
    }

    /// Whether it asks for an atomic operation.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether a message ends with this packet.
    pub const fn is_last(self) -> bool {
        !matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::WriteFirst
                | Self::WriteMiddle
                | Self::ReadResponseFirst
                | Self::ReadResponseMiddle
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_know_their_place() {
        for &opcode in BthOpcode::ALL {
            let name = std::format!("{opcode}");
            let only = name.contains("only");
            if name.contains("first") || name.contains("middle") || name.contains("last") || only {
                assert_eq!(opcode.is_first(), only || name.contains("first"), "{name}");
                assert_eq!(opcode.is_last(), only || name.contains("last"), "{name}");
            } else {
                assert!(opcode.is_first() && opcode.is_last(), "{name}");
            }
            assert_eq!(
                opcode.is_response(),
                name.contains("response") || name.contains("acknowledge"),
                "{name}"
            );
            assert_eq!(
                opcode.headers().contains(Headers::IMM_DT),
                name.contains("immediate"),
                "{name}"
            );
        }
        assert_eq!(BthOpcode::WriteOnlyImmediate.headers().bytes(), 20);
        assert_eq!(BthOpcode::AtomicAcknowledge.headers().bytes(), 12);
        assert_eq!(BthOpcode::CompareSwap.headers().bytes(), 28);
        assert_eq!(BthOpcode::SendOnly.headers().bytes(), 0);
    }

    #[test]
    fn each_transport_has_its_operations() {
        let known = |transport| {
            let known = BthOpcode::ALL
                .iter()
                .copied()
                .filter(move |opcode| opcode.headers_in(transport).is_some());
            known.map(|opcode| opcode as u8).collect::<std::vec::Vec<_>>()
        };
        assert_eq!(
            known(Transport::Rc),
            (0..=0x14).chain([0x16, 0x17]).collect::<std::vec::Vec<_>>()
        );
        assert_eq!(known(Transport::Xrc), known(Transport::Rc));
        assert_eq!(known(Transport::Dc).len(), BthOpcode::ALL.len());
        assert_eq!(known(Transport::Uc), (0..=0x0b).collect::<std::vec::Vec<_>>());
        assert_eq!(known(Transport::Ud), [0x04, 0x05]);
        assert_eq!(known(Transport::Congestion), [CONGESTION_NOTIFICATION]);
        assert_eq!(known(Transport::Vendor), [0x13, 0x14]);
        let bytes = |opcode: BthOpcode, transport| opcode.headers_in(transport).unwrap().bytes();
        assert_eq!(bytes(BthOpcode::SendOnlyImmediate, Transport::Ud), 12);
        assert_eq!(bytes(BthOpcode::CompareSwap, Transport::Vendor), 48);
        assert_eq!(bytes(BthOpcode::WriteOnly, Transport::Xrc), 20);
        assert_eq!(bytes(BthOpcode::Acknowledge, Transport::Xrc), 4);
        assert_eq!(bytes(BthOpcode::Connect, Transport::Dc), 24);
        assert_eq!(bytes(BthOpcode::WriteOnly, Transport::Dc), 16);
    }
}
