//! RoCEv2 packets: parsing, with every check that needs no queue pair, and building.

use std::net::{IpAddr, SocketAddr};

use barewire_layouts::icrc::{ICRC_BYTES, icrc_ipv4, icrc_ipv6};
use barewire_layouts::roce::{
    Aeth, AethSyndrome, AtomicAckEth, AtomicEth, Bth, BthOpcode, DcEth, Deth, Headers, Ieth, ImmDt,
    MaskedAtomicEth, Reth, Transport, XrcEth,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ROCE_PORT;

/// A well-formed packet.
#[derive(Clone, Debug)]
pub(crate) struct Packet<'a> {
    /// The index of the port that received it.
    pub(crate) port: usize,
    pub(crate) source: IpAddr,
    /// The multicast group that it was sent to, if it was sent to one.
    pub(crate) group: Option<IpAddr>,
    /// The traffic class of its network header.
    pub(crate) class: u8,
    pub(crate) bth: Bth,
    pub(crate) transport: Transport,
    pub(crate) opcode: BthOpcode,
    /// The extended headers that are present.
    pub(crate) headers: Headers,
    /// Bytes of the frame.
    pub(crate) length: usize,
    pub(crate) xrc: XrcEth,
    pub(crate) dc: DcEth,
    pub(crate) deth: Deth,
    pub(crate) reth: Reth,
    pub(crate) atomic: AtomicEth,
    pub(crate) masked: MaskedAtomicEth,
    /// For responses: the AETH. `None` if the response has none.
    pub(crate) syndrome: Option<AethSyndrome>,
    /// For an atomic acknowledge: the old value.
    pub(crate) original: u64,
    pub(crate) immediate: u32,
    /// The R_Key that the receiver must invalidate.
    pub(crate) invalidated: u32,
    pub(crate) payload: &'a [u8],
}

/// Why a packet is dropped by the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// The invariant CRC is wrong.
    Icrc,
    /// Too short for its headers, or an unknown opcode, version, partition or reserved code.
    Header,
}

/// Returns the invariant CRC of a frame from `source` to the RoCEv2 port of `destination`; `None`
/// if they are of different families.
fn invariant_crc(
    source: SocketAddr,
    destination: IpAddr,
    transport: &[u8],
) -> Option<[u8; ICRC_BYTES]> {
    let port = source.port();
    match (source.ip(), destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Some(icrc_ipv4(source.octets(), destination.octets(), port, ROCE_PORT, transport))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Some(icrc_ipv6(source.octets(), destination.octets(), port, ROCE_PORT, transport))
        }
        _ => None,
    }
}

/// Splits a header off the front of `rest`.
fn cut<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    rest: &mut &[u8],
) -> Result<T, Malformed> {
    let (header, tail) = T::read_from_prefix(rest).map_err(|_| Malformed::Header)?;
    *rest = tail;
    Ok(header)
}

/// Parses `frame`, which was sent from `source` to the device at `destination`. Accepts any bytes.
pub(crate) fn parse(
    frame: &[u8],
    source: SocketAddr,
    destination: IpAddr,
) -> Result<Packet<'_>, Malformed> {
    let length = frame.len().checked_sub(ICRC_BYTES).ok_or(Malformed::Header)?;
    let (transport, icrc) = frame.split_at(length);
    if transport.len() < size_of::<Bth>() {
        return Err(Malformed::Header);
    }
    if invariant_crc(source, destination, transport).is_none_or(|crc| crc != icrc) {
        return Err(Malformed::Icrc);
    }
    let mut rest = transport;
    let bth: Bth = cut(&mut rest)?;
    let transport = bth.transport().map_err(|_| Malformed::Header)?;
    let opcode = bth.operation().map_err(|_| Malformed::Header)?;
    let headers = opcode.headers_in(transport).ok_or(Malformed::Header)?;
    if bth.version() != 0 {
        return Err(Malformed::Header);
    }
    let mut packet = Packet {
        port: 0,
        class: 0,
        source: source.ip(),
        group: destination.is_multicast().then_some(destination),
        bth,
        transport,
        opcode,
        headers,
        length: frame.len(),
        xrc: XrcEth::default(),
        dc: DcEth::default(),
        deth: Deth::default(),
        reth: Reth::default(),
        atomic: AtomicEth::default(),
        masked: MaskedAtomicEth::default(),
        syndrome: None,
        original: 0,
        immediate: 0,
        invalidated: 0,
        payload: &[],
    };
    if headers.contains(Headers::XRC_ETH) {
        packet.xrc = cut(&mut rest)?;
    }
    if headers.contains(Headers::DC_ETH) {
        packet.dc = cut(&mut rest)?;
    }
    if headers.contains(Headers::DETH) {
        packet.deth = cut(&mut rest)?;
    }
    if headers.contains(Headers::RETH) {
        packet.reth = cut(&mut rest)?;
    }
    if headers.contains(Headers::ATOMIC_ETH) {
        packet.atomic = cut(&mut rest)?;
    }
    if headers.contains(Headers::MASKED_ATOMIC_ETH) {
        packet.masked = cut(&mut rest)?;
    }
    if headers.contains(Headers::AETH) {
        packet.syndrome = Some(cut::<Aeth>(&mut rest)?.syndrome().ok_or(Malformed::Header)?);
    }
    if headers.contains(Headers::ATOMIC_ACK_ETH) {
        packet.original = cut::<AtomicAckEth>(&mut rest)?.original.get();
    }
    if headers.contains(Headers::IMM_DT) {
        packet.immediate = cut::<ImmDt>(&mut rest)?.data.get();
    }
    if headers.contains(Headers::IETH) {
        packet.invalidated = cut::<Ieth>(&mut rest)?.rkey.get();
    }
    let payload = rest.len().checked_sub(bth.pad()).ok_or(Malformed::Header)?;
    packet.payload = &rest[..payload];
    Ok(packet)
}

/// Starts a packet in `frame`.
pub(crate) fn start(frame: &mut Vec<u8>, bth: Bth, payload: usize) {
    frame.clear();
    header(frame, &bth.padded_for(payload));
}

/// Builds a packet that opens or closes a dynamic connection in `frame`.
pub(crate) fn connection(
    frame: &mut Vec<u8>,
    bth: Bth,
    dc: &DcEth,
    (source, destination): (IpAddr, IpAddr),
) {
    start(frame, bth.with_transport(Transport::Dc), 0);
    header(frame, dc);
    finish(frame, source, destination);
}

/// Appends an extended header.
pub(crate) fn header<T: IntoBytes + Immutable>(frame: &mut Vec<u8>, header: &T) {
    frame.extend_from_slice(header.as_bytes());
}

/// Appends `length` bytes of payload, to be filled by the caller.
pub(crate) fn payload(frame: &mut Vec<u8>, length: usize) -> &mut [u8] {
    let start = frame.len();
    frame.resize(start + length, 0);
    &mut frame[start..]
}

/// Completes a packet: padding and invariant CRC.
pub(crate) fn finish(frame: &mut Vec<u8>, source: IpAddr, destination: IpAddr) {
    // All headers are multiples of four bytes.
    frame.resize(frame.len().next_multiple_of(4), 0);
    // There is no route between address families; the carrier reports it.
    let source = SocketAddr::new(source, ROCE_PORT);
    frame.extend(invariant_crc(source, destination, frame).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 2, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 2, 0, 2));

    fn from(address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, ROCE_PORT)
    }

    fn write(payload_bytes: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        start(&mut frame, Bth::new(BthOpcode::WriteOnlyImmediate, 0x48, 7), payload_bytes.len());
        header(&mut frame, &Reth { address: 9.into(), rkey: 8.into(), length: 5.into() });
        header(&mut frame, &ImmDt { data: 0x0102_0304.into() });
        payload(&mut frame, payload_bytes.len()).copy_from_slice(payload_bytes);
        finish(&mut frame, A, B);
        frame
    }

    #[test]
    fn a_packet_comes_back_as_it_was_built() {
        for length in 0..9 {
            let sent = &[1, 2, 3, 4, 5, 6, 7, 8][..length];
            let frame = write(sent);
            assert!(frame.len().is_multiple_of(4));
            let packet = parse(&frame, from(A), B).unwrap();
            assert_eq!(packet.opcode, BthOpcode::WriteOnlyImmediate);
            assert_eq!((packet.bth.destination(), packet.bth.psn()), (0x48, 7));
            assert_eq!((packet.reth.address.get(), packet.immediate), (9, 0x0102_0304));
            assert_eq!(packet.payload, sent);
        }
    }

    #[test]
    fn another_source_port_or_address_is_another_crc() {
        let frame = write(b"hello");
        assert_eq!(parse(&frame, from(B), B).unwrap_err(), Malformed::Icrc);
        assert_eq!(parse(&frame, SocketAddr::new(A, 1), B).unwrap_err(), Malformed::Icrc);
        assert_eq!(parse(&frame, from(A), A).unwrap_err(), Malformed::Icrc);
    }

    /// Recomputes the CRC, so that the checks after it are reached.
    fn sealed(mut transport: Vec<u8>) -> Vec<u8> {
        let icrc = invariant_crc(from(A), B, &transport).unwrap();
        transport.extend(icrc);
        transport
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&bytes, from(A), B);
            let _ = parse(&sealed(bytes), from(A), B);
        }

        #[test]
        fn any_headers_are_parsed_without_panic(opcode: u8, flags in any::<u8>(), rest in prop::collection::vec(any::<u8>(), 8..60)) {
            let mut bytes = vec![opcode, flags & 0xf0, 0xff, 0xff];
            bytes.extend(rest);
            if let Ok(packet) = parse(&sealed(bytes.clone()), from(A), B) {
                prop_assert!(packet.payload.len() + packet.headers.bytes() + 12 <= bytes.len());
            }
        }

        #[test]
        fn every_flipped_bit_is_noticed(byte in 0usize..44, bit in 0u8..8) {
            let mut frame = write(b"01234567");
            prop_assume!(byte < frame.len() && byte != 4);
            frame[byte] ^= 1 << bit;
            prop_assert_eq!(parse(&frame, from(A), B).unwrap_err(), Malformed::Icrc);
        }
    }
}
