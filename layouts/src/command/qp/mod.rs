//! Queue pairs: CREATE_QP, the state moves, QUERY_QP, DESTROY_QP (mlx5_ifc.h: `create_qp_*`,
//! `rst2init_qp_*`, `init2rtr_qp_*`, `rtr2rts_qp_*`, `rts2rts_qp_*`, `init2init_qp_*`, `qp_2err_*`,
//! `qp_2rst_*`, `query_qp_*`, `destroy_qp_*`, `qpc`, `ads`).

use super::{StatusOut, requests};
use crate::prm::{Field, Layout, Nested, field_enum, layouts};

mod context;
mod enhancements;

pub use enhancements::Enhancements;

field_enum! {
    /// A queue pair's state (mlx5_ifc.h: `MLX5_QPC_STATE_*`).
    QpState: u8, "QP state" {
        /// Reset: nothing is posted, nothing is set.
        Rst = 0x0, "RST";
        /// Init: receive WQEs may be posted.
        Init = 0x1, "INIT";
        /// Ready to receive: responds to the peer.
        Rtr = 0x2, "RTR";
        /// Ready to send.
        Rts = 0x3, "RTS";
        /// The send queue failed.
        Sqer = 0x4, "SQER";
        /// Error: everything posted is flushed.
        Err = 0x6, "ERR";
        /// The send queue drains.
        Sqd = 0x7, "SQD";
        /// Suspended by the device.
        Suspended = 0x9, "SUSPENDED";
    }
}

field_enum! {
    /// The transport service (mlx5_ifc.h: `MLX5_QPC_ST_*`).
    ServiceType: u8, "QP service type" {
        /// Reliable connected.
        Rc = 0x0, "RC";
        /// Unreliable connected.
        Uc = 0x1, "UC";
        /// Unreliable datagram.
        Ud = 0x2, "UD";
        /// Extended reliable connected.
        Xrc = 0x3, "XRC";
        /// Initiator of dynamic connections.
        Dci = 0x5, "DCI";
        /// Target of dynamic connections.
        Dct = 0x6, "DCT";
        /// Subnet management.
        Qp0 = 0x7, "QP0";
        /// General services.
        Qp1 = 0x8, "QP1";
        /// Raw packets.
        Raw = 0x9, "raw";
        /// Memory key updates.
        RegUmr = 0xc, "REG_UMR";
    }
}

field_enum! {
    /// The largest payload of a packet (mlx5_ifc.h: `MLX5_QPC_MTU_*`, the numbers of IBTA's path
    /// MTU).
    Mtu: u8, "path MTU" {
        /// 256 bytes.
        Bytes256 = 1, "256 B";
        /// 512 bytes.
        Bytes512 = 2, "512 B";
        /// 1024 bytes.
        Bytes1024 = 3, "1024 B";
        /// 2048 bytes.
        Bytes2048 = 4, "2048 B";
        /// 4096 bytes.
        Bytes4096 = 5, "4096 B";
    }
}

impl Mtu {
    /// The payload in bytes.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// Returns the largest MTU whose packets fit into Ethernet frames with a payload of `ethernet`
    /// bytes, or `None` if none does (linux ib_addr.h: `iboe_get_mtu`).
    pub fn within(ethernet: u16) -> Option<Self> {
        /// IP, UDP, the longest transport headers, and the check sum.
        const HEADERS: usize = 40 + 8 + 12 + 4 + 28 + 4;
        let fits = |mtu: &&Self| mtu.bytes() + HEADERS <= ethernet.into();
        Self::ALL.iter().rev().find(fits).copied()
    }
}

field_enum! {
    /// Format of a queue pair's time stamps (mlx5_ifc.h: `MLX5_QPC_TIMESTAMP_FORMAT_*`).
    TimestampFormat: u8, "format of time stamps" {
        /// Ticks of a clock that starts with the device.
        FreeRunning = 0x0, "free running";
        /// The one in which the device runs.
        Default = 0x1, "default";
        /// Real time.
        RealTime = 0x2, "real time";
    }
}

field_enum! {
    /// Migration state of a queue pair's path (mlx5_ifc.h: `MLX5_QPC_PM_STATE_*`).
    PathMigration: u8, "path migration state" {
        /// An alternate path is armed.
        Armed = 0x0, "armed";
        /// An alternate path is to be armed.
        Rearm = 0x1, "rearm";
        /// There is one path only.
        Migrated = 0x3, "migrated";
    }
}

field_enum! {
    /// The source of receive WQEs (mlx5_ifc.h: qpc.rq_type).
    ReceiveQueueType: u8, "receive queue type" {
        /// The queue pair has its own ring.
        Regular = 0x0, "regular";
        /// A shared receive queue.
        Shared = 0x1, "SRQ/RMP/XRQ";
        /// A shared one of an XRC domain.
        Xrc = 0x2, "XRC SRQ";
        /// There is none.
        Zero = 0x3, "none";
    }
}

field_enum! {
    /// Atomic operations that a queue pair accepts (mlx5_ifc.h: `MLX5_QPC_ATOMIC_MODE_*`).
    AtomicMode: u8, "atomic mode" {
        /// None.
        None = 0x0, "none";
        /// IBTA's two, of 8 bytes.
        IbSpec = 0x1, "IBTA";
        /// 8 bytes only.
        Only8 = 0x2, "8 B";
        /// Up to 8 bytes.
        UpTo8 = 0x3, "up to 8 B";
    }
}

/// No limit on RNR retries: the value of [`Qpc::RNR_RETRY`] that never gives up (IBTA 9.7.5.2.8).
pub const RNR_RETRY_FOREVER: u8 = 7;

layouts! {
    /// Creates a queue pair, in state RST. A list of page addresses may follow where no umem is
    /// given.
    CreateQpIn: 272, "create_qp_in";
    /// Names the new queue pair.
    CreateQpOut: 16, "create_qp_out";
    /// Destroys a queue pair.
    DestroyQpIn: 16, "destroy_qp_in";
    /// RST to INIT: sets access rights, port, partition key.
    Rst2InitQpIn: 272, "rst2init_qp_in";
    /// INIT to RTR: sets the peer, the path, and the responder's parameters.
    Init2RtrQpIn: 272, "init2rtr_qp_in";
    /// RTR to RTS: sets the requester's parameters.
    Rtr2RtsQpIn: 272, "rtr2rts_qp_in";
    /// INIT to INIT: changes access rights, port, partition key.
    Init2InitQpIn: 272, "init2init_qp_in";
    /// RTS to RTS: changes access rights, queue key, RNR timer, counter set; with a [`QpcExt`]
    /// after it, resets a stream.
    Rts2RtsQpIn: 272, "rts2rts_qp_in";
    /// The output of the commands that carry a context.
    ModifyQpOut: 16, "rst2init_qp_out";
    /// Any state to ERR.
    ToErrQpIn: 16, "qp_2err_in";
    /// Any state to RST.
    ToRstQpIn: 16, "qp_2rst_in";
    /// Queries a queue pair's context.
    QueryQpIn: 16, "query_qp_in";
    /// The context.
    QueryQpOut: 272, "query_qp_out";
    /// Queue pair context.
    Qpc: 232, "qpc";
    /// The rest of a queue pair context, in commands that are longer by it.
    QpcExt: 192, "qpc_ext";
    /// Address path: how packets reach the peer.
    AddressPath: 44, "ads";
}

requests! {
    CreateQpIn => CreateQp, CreateQpOut;
    DestroyQpIn => DestroyQp, StatusOut;
    Rst2InitQpIn => Rst2InitQp, ModifyQpOut;
    Init2RtrQpIn => Init2RtrQp, ModifyQpOut;
    Rtr2RtsQpIn => Rtr2RtsQp, ModifyQpOut;
    Init2InitQpIn => Init2InitQp, ModifyQpOut;
    Rts2RtsQpIn => Rts2RtsQp, ModifyQpOut;
    ToErrQpIn => ToErrQp, StatusOut;
    ToRstQpIn => ToRstQp, StatusOut;
    QueryQpIn => QueryQp, QueryQpOut;
}

impl CreateQpIn {
    /// Requests [`Enhancements`]; [`Enhancements::QUERY`] to learn which there are.
    pub const ECE: Field<Self> = Field::new(0xa0, 32);
    /// The queue pair's context.
    pub const QPC: Nested<Self, Qpc> = Nested::new(0xc0);
    /// Where the receive ring, and after it the send ring, starts in the umem, bytes.
    pub const WQ_UMEM_OFFSET: Field<Self, u64> = Field::new(0x800, 64);
    /// The umem that holds the rings.
    pub const WQ_UMEM_ID: Field<Self> = Field::new(0x840, 32);
    /// The rings are in a umem. The kernel sets it on behalf of a DEVX user.
    pub const WQ_UMEM_VALID: Field<Self, bool> = Field::new(0x860, 1);
}

impl CreateQpOut {
    /// The new queue pair's number.
    pub const QPN: Field<Self> = Field::new(0x48, 24);
    /// The [`Enhancements`] that the device supports, if any were requested.
    pub const ECE: Field<Self> = Field::new(0x60, 32);
}

impl DestroyQpIn {
    /// The queue pair.
    pub const QPN: Field<Self> = Field::new(0x48, 24);
}

/// The commands that carry a context and move a queue pair to another state or modify it in its
/// state: they share one layout.
pub trait ModifyQp: Layout + Sized {
    /// The queue pair.
    const QPN: Field<Self> = Field::new(0x48, 24);
    /// The optional parameters of the context that apply: [`OptionalParameters`].
    const OPT_PARAM_MASK: Field<Self> = Field::new(0x80, 32);
    /// The [`Enhancements`] that the connection is to use; 0 changes nothing.
    const ECE: Field<Self> = Field::new(0xa0, 32);
    /// The parameters.
    const QPC: Nested<Self, Qpc> = Nested::new(0xc0);
}

impl ModifyQp for Rst2InitQpIn {}
impl ModifyQp for Init2RtrQpIn {}
impl ModifyQp for Rtr2RtsQpIn {}
impl ModifyQp for Init2InitQpIn {}
impl ModifyQp for Rts2RtsQpIn {}

impl ModifyQpOut {
    /// The [`Enhancements`] that the connection uses: those that the device supports of what was
    /// set.
    pub const ECE: Field<Self> = Field::new(0x60, 32);
}

impl Rts2RtsQpIn {
    /// A [`QpcExt`] follows the command.
    pub const QPC_EXT: Field<Self, bool> = Field::new(0x40, 1);
    /// The parameters of the [`QpcExt`] that apply: [`ExtendedParameters`].
    pub const OPT_PARAM_MASK_95_32: Field<Self, u64> = Field::new(0x840, 64);
}

bitflags::bitflags! {
    /// Optional parameters of a [`QpcExt`] (rdma-core mlx5_ifc.h: `MLX5_QPC_OPT_MASK_32_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ExtendedParameters: u64 {
        /// [`QpcExt::DCI_STREAM_CHANNEL_ID`].
        const DCI_STREAM_CHANNEL_ID = 1 << 0;
    }
}

bitflags::bitflags! {
    /// Parameters that are optional in a state move (mlx5 qp.h: `MLX5_QP_OPTPAR_*`).
    ///
    /// The required parameters of a move are taken from the context whether or not their bits are
    /// set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OptionalParameters: u32 {
        /// `secondary_address_path`.
        const ALTERNATE_PATH = 1 << 0;
        /// `rre`.
        const REMOTE_READ = 1 << 1;
        /// `rae`.
        const REMOTE_ATOMIC = 1 << 2;
        /// `rwe`.
        const REMOTE_WRITE = 1 << 3;
        /// `primary_address_path.pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `q_key`.
        const Q_KEY = 1 << 5;
        /// `min_rnr_nak`.
        const RNR_TIMEOUT = 1 << 6;
        /// `primary_address_path`.
        const PRIMARY_PATH = 1 << 7;
        /// `log_sra_max`.
        const SRA_MAX = 1 << 8;
        /// `log_rra_max`.
        const RRA_MAX = 1 << 9;
        /// `pm_state`.
        const PATH_MIGRATION = 1 << 10;
        /// `retry_count`.
        const RETRY_COUNT = 1 << 12;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 13;
        /// `primary_address_path.ack_timeout`.
        const ACK_TIMEOUT = 1 << 14;
        /// `lag_tx_port_affinity`.
        const LAG_TX_PORT_AFFINITY = 1 << 15;
        /// `primary_address_path.vhca_port_num`.
        const PRIMARY_PORT = 1 << 16;
        /// `counter_set_id`.
        const COUNTER_SET_ID = 1 << 25;
    }
}

impl ToErrQpIn {
    /// The queue pair.
    pub const QPN: Field<Self> = Field::new(0x48, 24);
}

impl ToRstQpIn {
    /// The queue pair.
    pub const QPN: Field<Self> = Field::new(0x48, 24);
}

impl QueryQpIn {
    /// The queue pair.
    pub const QPN: Field<Self> = Field::new(0x48, 24);
}

impl QueryQpOut {
    /// The [`Enhancements`] that the connection uses.
    pub const ECE: Field<Self> = Field::new(0xa0, 32);
    /// The queue pair's context.
    pub const QPC: Nested<Self, Qpc> = Nested::new(0xc0);
}

const _: () = assert!(
    CreateQpIn::BYTES == 0x880 / 8 && Qpc::BYTES == 0x740 / 8 && AddressPath::BYTES == 0x160 / 8
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;
    use crate::prm::{View, ViewMut};

    #[test]
    fn create_qp_byte_for_byte() {
        let mut bytes = [0; CreateQpIn::BYTES];
        let mut create = request::<CreateQpIn>(&mut bytes).unwrap();
        create
            .set(CreateQpIn::WQ_UMEM_OFFSET, 0x1000)
            .set(CreateQpIn::WQ_UMEM_ID, 9)
            .set(CreateQpIn::WQ_UMEM_VALID, true);
        create
            .nested(CreateQpIn::QPC)
            .set(Qpc::ST, ServiceType::Rc)
            .set(Qpc::PM_STATE, PathMigration::Migrated)
            .set(Qpc::PD, 0x010203)
            .set(Qpc::LOG_RQ_SIZE, 5)
            .set(Qpc::LOG_RQ_STRIDE, 2)
            .set(Qpc::LOG_SQ_SIZE, 6)
            .set(Qpc::UAR_PAGE, 4)
            .set(Qpc::USER_INDEX, 0x0a0b0c)
            .set(Qpc::CQN_SND, 0x11)
            .set(Qpc::CQN_RCV, 0x12)
            .set(Qpc::DBR_ADDR, 0x80)
            .set(Qpc::RQ_TYPE, ReceiveQueueType::Regular)
            .set(Qpc::DBR_UMEM_VALID, true)
            .set(Qpc::DBR_UMEM_ID, 7);
        let mut want = [0; CreateQpIn::BYTES];
        want[0] = 0x05;
        let qpc = &mut want[24..];
        qpc[2] = 0x18;
        qpc[4..8].copy_from_slice(&[0, 1, 2, 3]);
        // log_rq_size 5 in bits 1-4 and log_rq_stride 2 in bits 5-7 of byte 9; log_sq_size 6 in
        // bits 1-4 of byte 10
        qpc[9..11].copy_from_slice(&[5 << 3 | 2, 6 << 3]);
        qpc[15] = 4;
        qpc[17..20].copy_from_slice(&[0x0a, 0x0b, 0x0c]);
        qpc[0x3e8 / 8 + 2] = 0x11;
        qpc[0x4e8 / 8 + 2] = 0x12;
        qpc[0x500 / 8 + 7] = 0x80;
        qpc[0x680 / 8] = 0x10;
        qpc[0x720 / 8 + 3] = 7;
        want[0x800 / 8 + 6] = 0x10;
        want[0x840 / 8 + 3] = 9;
        want[0x860 / 8] = 0x80;
        assert_eq!(bytes, want);
    }

    #[test]
    fn path_byte_for_byte() {
        let mut bytes = [0; Init2RtrQpIn::BYTES];
        let mut modify = request::<Init2RtrQpIn>(&mut bytes).unwrap();
        modify.set(Init2RtrQpIn::QPN, 0x010203);
        let mut qpc = modify.nested(Init2RtrQpIn::QPC);
        qpc.set(Qpc::MTU, Mtu::Bytes4096).set(Qpc::LOG_MSG_MAX, 30).set(Qpc::REMOTE_QPN, 0x040506);
        qpc.nested(Qpc::PRIMARY_ADDRESS_PATH)
            .set_array(AddressPath::RGID_RIP, [0xaa; 16])
            .set(AddressPath::UDP_SPORT, 0x1234)
            .set(AddressPath::HOP_LIMIT, 64)
            .set(AddressPath::ACK_TIMEOUT, 14)
            .set(AddressPath::VHCA_PORT_NUM, 1)
            .set_array(AddressPath::RMAC, [1, 2, 3, 4, 5, 6]);
        assert_eq!(bytes[..12], [5, 3, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        assert_eq!(bytes[24 + 8], 0xbe, "mtu 5, log_msg_max 30");
        assert_eq!(bytes[24 + 20..24 + 24], [0, 4, 5, 6]);
        let path = &bytes[48..92];
        assert_eq!(path[8..12], [14 << 3, 0, 0, 64]);
        assert_eq!(path[16..32], [0xaa; 16]);
        assert_eq!(path[34..36], [0x12, 0x34]);
        assert_eq!(path[36..44], [0, 1, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn enhancements_byte_for_byte() {
        let bits = 0x3040_0002;
        let mut create = [0; CreateQpIn::BYTES];
        request::<CreateQpIn>(&mut create).unwrap().set(CreateQpIn::ECE, bits);
        let mut want = [0; CreateQpIn::BYTES];
        want[0] = 0x05;
        want[20..24].copy_from_slice(&[0x30, 0x40, 0, 2]);
        assert_eq!(create, want);
        let mut modify = [0; Init2RtrQpIn::BYTES];
        request::<Init2RtrQpIn>(&mut modify).unwrap().set(Init2RtrQpIn::ECE, bits);
        want[1] = 0x03;
        assert_eq!(modify, want);
        let created = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 0x30, 0x40, 0, 2];
        let created_view = View::<CreateQpOut>::new(&created).unwrap();
        assert_eq!(created_view.get(CreateQpOut::ECE), bits);
        assert_eq!(created_view.get(CreateQpOut::QPN), 0x010203);
        assert_eq!(View::<ModifyQpOut>::new(&created).unwrap().get(ModifyQpOut::ECE), bits);
        want[..2].fill(0);
        assert_eq!(View::<QueryQpOut>::new(&want).unwrap().get(QueryQpOut::ECE), bits);
    }

    #[test]
    fn stream_reset_byte_for_byte() {
        // As libmlx5 builds it (`mlx5dv_dci_stream_id_reset`), but for the uid.
        let mut bytes = [0; Rts2RtsQpIn::BYTES + QpcExt::BYTES];
        request::<Rts2RtsQpIn>(&mut bytes)
            .unwrap()
            .set(Rts2RtsQpIn::QPN, 0x010203)
            .set(Rts2RtsQpIn::QPC_EXT, true)
            .set(
                Rts2RtsQpIn::OPT_PARAM_MASK_95_32,
                ExtendedParameters::DCI_STREAM_CHANNEL_ID.bits(),
            );
        ViewMut::<QpcExt>::new(&mut bytes[Rts2RtsQpIn::BYTES..])
            .unwrap()
            .set(QpcExt::DCI_STREAM_CHANNEL_ID, 0x0405);
        let mut want = [0; 464];
        want[..12].copy_from_slice(&[0x05, 0x05, 0, 0, 0, 0, 0, 0, 0x80, 1, 2, 3]);
        want[0x840 / 8 + 7] = 1;
        want[0x890 / 8..0x8a0 / 8].copy_from_slice(&[4, 5]);
        assert_eq!(bytes, want);
        let command = View::<Rts2RtsQpIn>::new(&want).unwrap();
        assert_eq!(
            (command.get(Rts2RtsQpIn::QPC_EXT), command.get(Rts2RtsQpIn::QPN)),
            (true, 0x010203)
        );
        let more = View::<QpcExt>::new(&want[Rts2RtsQpIn::BYTES..]).unwrap();
        assert_eq!(more.get(QpcExt::DCI_STREAM_CHANNEL_ID), 0x0405);
    }

    #[test]
    fn streams_byte_for_byte() {
        let mut bytes = [0; Qpc::BYTES];
        ViewMut::<Qpc>::new(&mut bytes)
            .unwrap()
            .set(Qpc::FULL_HANDSHAKE, true)
            .set(Qpc::LOG_NUM_DCI_STREAM_CHANNELS, 5)
            .set(Qpc::LOG_NUM_DCI_ERRORED_STREAMS, 3);
        let mut want = [0; Qpc::BYTES];
        (want[0x80 / 8], want[0x3e0 / 8], want[0x400 / 8]) = (0x10, 5, 3);
        assert_eq!(bytes, want);
    }

    #[test]
    fn every_field_of_a_context_stands_alone() {
        // Setting all of one field's bits must not show in its neighbours.
        let mut bytes = [0; Qpc::BYTES];
        let mut qpc = ViewMut::<Qpc>::new(&mut bytes).unwrap();
        qpc.set(Qpc::RETRY_COUNT, 7)
            .set(Qpc::LOG_SRA_MAX, 0)
            .set(Qpc::RNR_RETRY, 0)
            .set(Qpc::LOG_RRA_MAX, 7);
        qpc.set(Qpc::MIN_RNR_NAK, 31).set(Qpc::NEXT_RCV_PSN, 0);
        let qpc = View::<Qpc>::new(&bytes).unwrap();
        assert_eq!(
            (qpc.get(Qpc::LOG_SRA_MAX), qpc.get(Qpc::RETRY_COUNT), qpc.get(Qpc::RNR_RETRY)),
            (0, 7, 0)
        );
        assert_eq!((qpc.get(Qpc::MIN_RNR_NAK), qpc.get(Qpc::NEXT_RCV_PSN)), (31, 0));
        assert_eq!(bytes[0x388 / 8], 0x07);
        assert_eq!(bytes[0x488 / 8], 0xe0);
        assert_eq!(bytes[0x4a0 / 8], 0x1f);
    }

    #[test]
    fn mtus() {
        assert_eq!(
            Mtu::ALL.iter().map(|mtu| mtu.bytes()).collect::<std::vec::Vec<_>>(),
            [256, 512, 1024, 2048, 4096]
        );
        for (ethernet, mtu) in [
            (351, None),
            (352, Some(Mtu::Bytes256)),
            (1500, Some(Mtu::Bytes1024)),
            (4191, Some(Mtu::Bytes2048)),
            (4192, Some(Mtu::Bytes4096)),
            (9000, Some(Mtu::Bytes4096)),
        ] {
            assert_eq!(Mtu::within(ethernet), mtu, "{ethernet}");
        }
    }
}
