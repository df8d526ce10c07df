//! Messages of communication management (IBTA 12.6 and 12.11; linux ibta_vol1_c12.h). Each is the
//! whole datagram, of which [`super::Mad`] names the header.

use super::{HEADER, MAD_BYTES};
use crate::prm::{ByteField, Field, Nested, field_enum, layouts};

field_enum! {
    /// The messages (IBTA table 326).
    Message: u16, "message of communication management" {
        /// Asks for a connection.
        Request = 0x10, "REQ";
        /// Asks the peer to wait for its response.
        Acknowledged = 0x11, "MRA";
        /// Refuses a request or a reply.
        Rejected = 0x12, "REJ";
        /// Accepts a request.
        Reply = 0x13, "REP";
        /// The connection exists.
        ReadyToUse = 0x14, "RTU";
        /// Asks for the end of the connection.
        DisconnectRequest = 0x15, "DREQ";
        /// The connection has ended.
        DisconnectReply = 0x16, "DREP";
        /// Asks for the queue pair of a service for datagrams.
        ServiceRequest = 0x17, "SIDR_REQ";
        /// Names the queue pair.
        ServiceReply = 0x18, "SIDR_REP";
    }
}

field_enum! {
    /// The transport service of the connection (IBTA table 106).
    Service: u8, "transport service" {
        /// Reliable connection.
        Reliable = 0, "RC";
        /// Unreliable connection.
        Unreliable = 1, "UC";
        /// As the extended type says.
        Extended = 3, "extended";
    }
}

/// Reasons of a rejection (IBTA table 111).
pub mod reason {
    /// The peer did not respond in time.
    pub const TIMEOUT: u16 = 4;
    /// No program listens to this service.
    pub const NO_SERVICE: u16 = 8;
    /// The transport service is another than the listener's.
    pub const TRANSPORT: u16 = 9;
    /// The connection of this queue pair is stale.
    pub const STALE: u16 = 10;
    /// The port does not have the path MTU.
    pub const MTU: u16 = 26;
    /// The program refuses it.
    pub const CONSUMER: u16 = 28;
}

/// Status of a [`ServiceReply`] (IBTA table 120).
pub mod status {
    /// The queue pair is valid.
    pub const VALID: u8 = 0;
    /// No program listens to this service.
    pub const UNSUPPORTED: u8 = 1;
    /// The program refuses it.
    pub const REJECTED: u8 = 2;
}

layouts! {
    /// Message REQ (IBTA table 106).
    Request: MAD_BYTES, "cm_req";
    /// A path in it.
    Path: 44, "cm_req path";
    /// Message MRA (IBTA table 107).
    Acknowledged: MAD_BYTES, "cm_mra";
    /// Message REJ (IBTA table 110).
    Rejected: MAD_BYTES, "cm_rej";
    /// Message REP (IBTA table 112).
    Reply: MAD_BYTES, "cm_rep";
    /// The identifiers of the connection, with which the messages after REQ start: also RTU and DREP
    /// (IBTA tables 113 and 115).
    Pair: MAD_BYTES, "cm_rtu";
    /// Message DREQ (IBTA table 114).
    DisconnectRequest: MAD_BYTES, "cm_dreq";
    /// Message SIDR_REQ (IBTA table 119).
    ServiceRequest: MAD_BYTES, "cm_sidr_req";
    /// Message SIDR_REP (IBTA table 120).
    ServiceReply: MAD_BYTES, "cm_sidr_rep";
}

impl Request {
    /// The sender's identifier of the connection.
    pub const LOCAL_ID: Field<Self> = Field::new(HEADER, 32);
    /// Manufacturer, for enhancements.
    pub const VENDOR: Field<Self> = Field::new(HEADER + 5 * 8, 24);
    /// The service that is asked for.
    pub const SERVICE_ID: Field<Self, u64> = Field::new(HEADER + 8 * 8, 64);
    /// GUID of the sender's device.
    pub const GUID: ByteField<Self, 8> = ByteField::new(HEADER + 16 * 8);
    /// The sender's queue pair.
    pub const QPN: Field<Self> = Field::new(HEADER + 32 * 8, 24);
    /// Reads and atomics that the sender can respond to at a time.
    pub const RESPONDER_RESOURCES: Field<Self, u8> = Field::new(HEADER + 35 * 8, 8);
    /// Reads and atomics that the sender wants to have outstanding.
    pub const INITIATOR_DEPTH: Field<Self, u8> = Field::new(HEADER + 39 * 8, 8);
    /// The time in which the receiver's manager must respond: 4.096 us * 2^code.
    pub const REMOTE_TIMEOUT: Field<Self, u8> = Field::new(HEADER + 43 * 8, 5);
    /// Transport service.
    pub const SERVICE: Field<Self, Service> = Field::new(HEADER + 43 * 8 + 5, 2);
    /// Whether the sender has end-to-end flow control.
    pub const FLOW_CONTROL: Field<Self, bool> = Field::new(HEADER + 43 * 8 + 7, 1);
    /// The PSN at which the receiver of this message begins to send (IBTA, 12.7.31: Starting PSN).
    pub const PSN: Field<Self> = Field::new(HEADER + 44 * 8, 24);
    /// The time in which the sender's manager responds.
    pub const LOCAL_TIMEOUT: Field<Self, u8> = Field::new(HEADER + 47 * 8, 5);
    /// Retries of the receiver's queue pair.
    pub const RETRIES: Field<Self, u8> = Field::new(HEADER + 47 * 8 + 5, 3);
    /// Partition.
    pub const PKEY: Field<Self, u16> = Field::new(HEADER + 48 * 8, 16);
    /// Path MTU: the code of `IBV_MTU_...`.
    pub const MTU: Field<Self, u8> = Field::new(HEADER + 50 * 8, 4);
    /// Retries of the receiver's queue pair if the sender is not ready.
    pub const RNR_RETRIES: Field<Self, u8> = Field::new(HEADER + 50 * 8 + 5, 3);
    /// How often the sender repeats this request.
    pub const MANAGER_RETRIES: Field<Self, u8> = Field::new(HEADER + 51 * 8, 4);
    /// Whether the sender's queue pair has a shared receive queue.
    pub const SRQ: Field<Self, bool> = Field::new(HEADER + 51 * 8 + 4, 1);
    /// The extended transport service: 1 for XRC.
    pub const EXTENDED_SERVICE: Field<Self, u8> = Field::new(HEADER + 51 * 8 + 5, 3);
    /// The path.
    pub const PRIMARY: Nested<Self, Path> = Nested::new(HEADER + 52 * 8);
    /// Private data.
    pub const PRIVATE: ByteField<Self, 92> = ByteField::new(HEADER + 140 * 8);
}

impl Path {
    /// The sender's LID; all ones for RoCE.
    pub const LOCAL_LID: Field<Self, u16> = Field::new(0, 16);
    /// The receiver's LID.
    pub const REMOTE_LID: Field<Self, u16> = Field::new(16, 16);
    /// The sender's GID.
    pub const LOCAL_GID: ByteField<Self, 16> = ByteField::new(4 * 8);
    /// The receiver's GID.
    pub const REMOTE_GID: ByteField<Self, 16> = ByteField::new(20 * 8);
    /// Flow label.
    pub const FLOW_LABEL: Field<Self> = Field::new(36 * 8, 20);
    /// Rate: the code of `IBV_RATE_...`.
    pub const RATE: Field<Self, u8> = Field::new(39 * 8 + 2, 6);
    /// Traffic class.
    pub const TRAFFIC_CLASS: Field<Self, u8> = Field::new(40 * 8, 8);
    /// Hop limit.
    pub const HOP_LIMIT: Field<Self, u8> = Field::new(41 * 8, 8);
    /// Service level.
    pub const SERVICE_LEVEL: Field<Self, u8> = Field::new(42 * 8, 4);
    /// Whether both are in the same subnet.
    pub const SUBNET_LOCAL: Field<Self, bool> = Field::new(42 * 8 + 4, 1);
    /// The acknowledgment timeout of the receiver's queue pair.
    pub const ACK_TIMEOUT: Field<Self, u8> = Field::new(43 * 8, 5);
}

impl Pair {
    /// The sender's identifier of the connection.
    pub const LOCAL_ID: Field<Self> = Field::new(HEADER, 32);
    /// The receiver's identifier of the connection.
    pub const REMOTE_ID: Field<Self> = Field::new(HEADER + 4 * 8, 32);
}

impl Acknowledged {
    /// The message: 0 for REQ, 1 for REP, 2 for LAP.
    pub const MESSAGE: Field<Self, u8> = Field::new(HEADER + 8 * 8, 2);
    /// The time that the sender needs: 4.096 us * 2^code.
    pub const TIMEOUT: Field<Self, u8> = Field::new(HEADER + 9 * 8, 5);
}

impl Rejected {
    /// The message: 0 for REQ, 1 for REP, 2 for none.
    pub const MESSAGE: Field<Self, u8> = Field::new(HEADER + 8 * 8, 2);
    /// Bytes of additional information.
    pub const INFORMATION_LENGTH: Field<Self, u8> = Field::new(HEADER + 9 * 8, 7);
    /// The reason: see [`reason`].
    pub const REASON: Field<Self, u16> = Field::new(HEADER + 10 * 8, 16);
    /// Additional information.
    pub const INFORMATION: ByteField<Self, 72> = ByteField::new(HEADER + 12 * 8);
    /// Private data.
    pub const PRIVATE: ByteField<Self, 148> = ByteField::new(HEADER + 84 * 8);
}

impl Reply {
    /// The sender's queue pair.
    pub const QPN: Field<Self> = Field::new(HEADER + 12 * 8, 24);
    /// Manufacturer, for enhancements: its first byte.
    pub const VENDOR_HIGH: Field<Self, u8> = Field::new(HEADER + 15 * 8, 8);
    /// Its second byte.
    pub const VENDOR_MIDDLE: Field<Self, u8> = Field::new(HEADER + 19 * 8, 8);
    /// The PSN at which the receiver of this message begins to send (IBTA, 12.7.31: Starting PSN).
    pub const PSN: Field<Self> = Field::new(HEADER + 20 * 8, 24);
    /// Its last byte.
    pub const VENDOR_LOW: Field<Self, u8> = Field::new(HEADER + 23 * 8, 8);
    /// Reads and atomics that the sender can respond to at a time.
    pub const RESPONDER_RESOURCES: Field<Self, u8> = Field::new(HEADER + 24 * 8, 8);
    /// Reads and atomics that the sender will have outstanding.
    pub const INITIATOR_DEPTH: Field<Self, u8> = Field::new(HEADER + 25 * 8, 8);
    /// The delay of the sender's acknowledgments.
    pub const ACK_DELAY: Field<Self, u8> = Field::new(HEADER + 26 * 8, 5);
    /// Whether the sender has end-to-end flow control.
    pub const FLOW_CONTROL: Field<Self, bool> = Field::new(HEADER + 26 * 8 + 7, 1);
    /// Retries of the receiver's queue pair if the sender is not ready.
    pub const RNR_RETRIES: Field<Self, u8> = Field::new(HEADER + 27 * 8, 3);
    /// Whether the sender's queue pair has a shared receive queue.
    pub const SRQ: Field<Self, bool> = Field::new(HEADER + 27 * 8 + 3, 1);
    /// GUID of the sender's device.
    pub const GUID: ByteField<Self, 8> = ByteField::new(HEADER + 28 * 8);
    /// Private data.
    pub const PRIVATE: ByteField<Self, 196> = ByteField::new(HEADER + 36 * 8);
}

impl DisconnectRequest {
    /// The receiver's queue pair.
    pub const REMOTE_QPN: Field<Self> = Field::new(HEADER + 8 * 8, 24);
}

impl ServiceRequest {
    /// The sender's identifier of the request.
    pub const REQUEST_ID: Field<Self> = Field::new(HEADER, 32);
    /// Partition.
    pub const PKEY: Field<Self, u16> = Field::new(HEADER + 4 * 8, 16);
    /// The service that is asked for.
    pub const SERVICE_ID: Field<Self, u64> = Field::new(HEADER + 8 * 8, 64);
    /// Private data.
    pub const PRIVATE: ByteField<Self, 216> = ByteField::new(HEADER + 16 * 8);
}

impl ServiceReply {
    /// The receiver's identifier of its request.
    pub const REQUEST_ID: Field<Self> = Field::new(HEADER, 32);
    /// The result: see [`status`].
    pub const STATUS: Field<Self, u8> = Field::new(HEADER + 4 * 8, 8);
    /// The queue pair of the service.
    pub const QPN: Field<Self> = Field::new(HEADER + 8 * 8, 24);
    /// The service.
    pub const SERVICE_ID: Field<Self, u64> = Field::new(HEADER + 12 * 8, 64);
    /// The queue pair's Q_Key.
    pub const QKEY: Field<Self> = Field::new(HEADER + 20 * 8, 32);
    /// Private data.
    pub const PRIVATE: ByteField<Self, 136> = ByteField::new(HEADER + 96 * 8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::management::Mad;
    use crate::prm::ViewMut;

    #[test]
    fn a_request_byte_for_byte() {
        let mut bytes = [0; MAD_BYTES];
        ViewMut::<Mad>::new(&mut bytes)
            .unwrap()
            .set(Mad::BASE_VERSION, Mad::VERSION_1)
            .set(Mad::CLASS, Mad::COMMUNICATION)
            .set(Mad::CLASS_VERSION, Mad::VERSION_2)
            .set(Mad::METHOD, Mad::SEND)
            .set(Mad::TRANSACTION, 0x0102_0304_0506_0708)
            .set(Mad::ATTRIBUTE, Message::Request);
        let mut request = ViewMut::<Request>::new(&mut bytes).unwrap();
        request
            .set(Request::LOCAL_ID, 0xaabb_ccdd)
            .set(Request::VENDOR, 0x15b3)
            .set(Request::SERVICE_ID, 0x0106_1c06)
            .set(Request::QPN, 0x123456)
            .set(Request::RESPONDER_RESOURCES, 7)
            .set(Request::INITIATOR_DEPTH, 8)
            .set(Request::REMOTE_TIMEOUT, 20)
            .set(Request::SERVICE, Service::Unreliable)
            .set(Request::FLOW_CONTROL, true)
            .set(Request::PSN, 0x654321)
            .set(Request::LOCAL_TIMEOUT, 20)
            .set(Request::RETRIES, 7)
            .set(Request::PKEY, 0xffff)
            .set(Request::MTU, 5)
            .set(Request::RNR_RETRIES, 6)
            .set(Request::MANAGER_RETRIES, 15)
            .set(Request::SRQ, true)
            .set_array(Request::PRIVATE, [0x77; 92]);
        request
            .nested(Request::PRIMARY)
            .set(Path::LOCAL_LID, 0xffff)
            .set_array(Path::LOCAL_GID, [1; 16])
            .set_array(Path::REMOTE_GID, [2; 16])
            .set(Path::FLOW_LABEL, 0xabcde)
            .set(Path::RATE, 3)
            .set(Path::HOP_LIMIT, 64)
            .set(Path::SERVICE_LEVEL, 4)
            .set(Path::SUBNET_LOCAL, true)
            .set(Path::ACK_TIMEOUT, 17);
        assert_eq!(
            bytes[..24],
            [1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x10, 0, 0, 0, 0, 0, 0]
        );
        let message = &bytes[24..];
        assert_eq!(
            message[..16],
            [0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0x15, 0xb3, 0, 0, 0, 0, 1, 6, 0x1c, 6]
        );
        assert_eq!(
            message[32..52],
            [
                0x12, 0x34, 0x56, 7, 0, 0, 0, 8, 0, 0, 0, 0xa3, 0x65, 0x43, 0x21, 0xa7, 0xff, 0xff,
                0x56, 0xf8
            ]
        );
        assert_eq!((&message[52..56], message[56], message[72]), (&[0xff, 0xff, 0, 0][..], 1, 2));
        assert_eq!(message[88..96], [0xab, 0xcd, 0xe0, 3, 0, 64, 0x48, 17 << 3]);
        assert_eq!((message[139], message[140], message[231]), (0, 0x77, 0x77));
    }

    #[test]
    fn replies_byte_for_byte() {
        let mut bytes = [0; MAD_BYTES];
        ViewMut::<Reply>::new(&mut bytes)
            .unwrap()
            .set(Reply::QPN, 0x123456)
            .set(Reply::VENDOR_HIGH, 1)
            .set(Reply::VENDOR_MIDDLE, 2)
            .set(Reply::PSN, 0xabcdef)
            .set(Reply::VENDOR_LOW, 3)
            .set(Reply::RESPONDER_RESOURCES, 4)
            .set(Reply::INITIATOR_DEPTH, 5)
            .set(Reply::ACK_DELAY, 16)
            .set(Reply::RNR_RETRIES, 7)
            .set(Reply::SRQ, true)
            .set_array(Reply::GUID, [9; 8])
            .set_array(Reply::PRIVATE, [0x77; 196]);
        assert_eq!(
            bytes[36..60],
            [
                0x12, 0x34, 0x56, 1, 0, 0, 0, 2, 0xab, 0xcd, 0xef, 3, 4, 5, 0x80, 0xf0, 9, 9, 9, 9,
                9, 9, 9, 9
            ]
        );
        assert_eq!((bytes[60], bytes[255]), (0x77, 0x77));

        let mut bytes = [0; MAD_BYTES];
        ViewMut::<Rejected>::new(&mut bytes)
            .unwrap()
            .set(Rejected::MESSAGE, 1)
            .set(Rejected::INFORMATION_LENGTH, 8)
            .set(Rejected::REASON, reason::CONSUMER)
            .set_array(Rejected::INFORMATION, [5; 72])
            .set_array(Rejected::PRIVATE, [6; 148]);
        assert_eq!(bytes[32..37], [0x40, 0x10, 0, 28, 5]);
        assert_eq!((bytes[107], bytes[108], bytes[255]), (5, 6, 6));

        let mut bytes = [0; MAD_BYTES];
        ViewMut::<ServiceReply>::new(&mut bytes)
            .unwrap()
            .set(ServiceReply::REQUEST_ID, 1)
            .set(ServiceReply::STATUS, status::REJECTED)
            .set(ServiceReply::QPN, 0x030405)
            .set(ServiceReply::SERVICE_ID, 6)
            .set(ServiceReply::QKEY, 7)
            .set_array(ServiceReply::PRIVATE, [8; 136]);
        assert_eq!(bytes[24..36], [0, 0, 0, 1, 2, 0, 0, 0, 3, 4, 5, 0]);
        assert_eq!(bytes[36..48], [0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 7]);
        assert_eq!((bytes[119], bytes[120], bytes[255]), (0, 8, 8));
    }
}
