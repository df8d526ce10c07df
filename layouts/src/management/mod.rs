//! Management datagrams (IBTA 13.4), as managers of connections exchange them between queue pairs 1
//! of their ports.
//!
//! A datagram is always [`MAD_BYTES`] long: a [`Mad`] header, then a message of [`connection`]. The
//! message's private data begins, if the connection is between IP addresses, with an [`IpHeader`].

use crate::prm::{ByteField, Field, layouts};

pub mod connection;

/// Length of a management datagram.
pub const MAD_BYTES: usize = 256;
/// The queue pair that receives management datagrams (IBTA 13.5.1).
pub const GENERAL_SERVICES_QPN: u32 = 1;
/// Its Q_Key (IBTA 10.2.5).
pub const GENERAL_SERVICES_QKEY: u32 = 0x8001_0000;

/// Bits before the message.
const HEADER: usize = 24 * 8;

layouts! {
    /// A management datagram.
    Mad: MAD_BYTES, "mad";
    /// The addresses of a connection between IP addresses, at the start of the private data of its
    /// request (IBTA annex A11; linux cma.c: `cma_hdr`).
    IpHeader: 36, "cma_hdr";
}

impl Mad {
    /// Version of the header: [`Self::VERSION_1`].
    pub const BASE_VERSION: Field<Self, u8> = Field::new(0x0, 8);
    /// Management class: [`Self::COMMUNICATION`].
    pub const CLASS: Field<Self, u8> = Field::new(0x8, 8);
    /// Version of the class: [`Self::VERSION_2`].
    pub const CLASS_VERSION: Field<Self, u8> = Field::new(0x10, 8);
    /// Method: [`Self::SEND`].
    pub const METHOD: Field<Self, u8> = Field::new(0x18, 8);
    /// Status.
    pub const STATUS: Field<Self, u16> = Field::new(0x20, 16);
    /// Transaction, which the sender of a request chooses.
    pub const TRANSACTION: Field<Self, u64> = Field::new(0x40, 64);
    /// Attribute: a [`connection::Message`].
    pub const ATTRIBUTE: Field<Self, connection::Message> = Field::new(0x80, 16);
    /// Attribute modifier. In a connection request and its reply, the enhancements that the
    /// manufacturer's queue pairs would use (ECE).
    pub const MODIFIER: Field<Self> = Field::new(0xa0, 32);

    /// The only version of the header.
    pub const VERSION_1: u8 = 1;
    /// The class of communication management (IBTA 16.7).
    pub const COMMUNICATION: u8 = 0x07;
    /// The version of that class.
    pub const VERSION_2: u8 = 2;
    /// The method `Send`.
    pub const SEND: u8 = 0x03;
}

impl IpHeader {
    /// Version of this header: 0.
    pub const VERSION: Field<Self, u8> = Field::new(0x0, 8);
    /// Version of IP: 4 or 6.
    pub const IP_VERSION: Field<Self, u8> = Field::new(0x8, 4);
    /// The port of the active side.
    pub const PORT: Field<Self, u16> = Field::new(0x10, 16);
    /// The address of the active side. An IPv4 address is in the last four bytes.
    pub const SOURCE: ByteField<Self, 16> = ByteField::new(0x20);
    /// The address of the passive side.
    pub const DESTINATION: ByteField<Self, 16> = ByteField::new(0xa0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prm::ViewMut;

    #[test]
    fn addresses_byte_for_byte() {
        let mut bytes = [0; 36];
        let mut source = [0; 16];
        source[12..].copy_from_slice(&[10, 98, 0, 2]);
        ViewMut::<IpHeader>::new(&mut bytes)
            .unwrap()
            .set(IpHeader::IP_VERSION, 4)
            .set(IpHeader::PORT, 0xc350)
            .set_array(IpHeader::SOURCE, source)
            .set_array(IpHeader::DESTINATION, [6; 16]);
        assert_eq!(bytes[..4], [0, 0x40, 0xc3, 0x50]);
        assert_eq!((&bytes[16..20], &bytes[20..]), (&[10, 98, 0, 2][..], &[6; 16][..]));
    }
}
