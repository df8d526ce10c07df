//! Queue pairs (CREATE_QP, RST2INIT_QP, INIT2RTR_QP, RTR2RTS_QP, 2ERR_QP,
//! 2RST_QP, QUERY_QP).

use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::command::Request;
use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::{
    AddressPath, AtomicMode, CreateQpIn, CreateQpOut, Enhancements, ExtendedParameters,
    Init2RtrQpIn, ModifyQp, ModifyQpOut, Mtu, OptionalParameters, PathMigration, QpState, Qpc,
    QpcExt, QueryQpIn, QueryQpOut, ReceiveQueueType, Rst2InitQpIn, Rtr2RtsQpIn, Rts2RtsQpIn,
    ToErrQpIn, ToRstQpIn,
};
use barewire_layouts::command::xrq::XrqOffload;
use barewire_layouts::prm::ViewMut;
use barewire_layouts::wqe::{DataSegment, WQEBB};

use crate::backend::{Initial, Pair, PairInfo, PairSizes, Path, Receive};
use crate::channel::owned::Owned;
use crate::channel::shared_memory::{Piece, SharedMemory};
use crate::channel::{Answer, Command, CommandChannel, Object, Uar};
use crate::error::Error;
use crate::object_events::{Hub, Watched};
use crate::readback;
use crate::values::{Access, Port};

/// A queue pair and its memory.
#[derive(Debug)]
struct CommandPair {
    /// Its memory are the rings and the doorbell record.
    owned: Owned<[Piece; 2]>,
    number: u32,
    /// Its events, if they are delivered.
    watched: Option<Watched>,
}

/// Creates a queue pair in the reset state that uses the doorbell register of `uar`, if it has a send
/// ring. Its events go to `events`.
pub(crate) fn create_pair(
    channel: &dyn CommandChannel,
    (memory, events): (&SharedMemory, Option<&Arc<Hub>>),
    domain: u32,
    uar: Option<&dyn Uar>,
    [send_cqn, receive_cqn]: [u32; 2],
    sizes: &PairSizes<'_>,
) -> Result<PairInfo, Error> {
    // The send ring follows the receive ring. The kernel declares both umems of the command valid
    // (linux devx.c: `devx_set_umem_valid`), so a queue pair without rings names memory as well.
    let receive_bytes = sizes.receive.entries() as usize * size_of::<DataSegment>();
    let send_bytes = sizes.send_blocks as usize * WQEBB;
    let rings = memory.ring(channel, (receive_bytes + send_bytes).max(WQEBB))?;
    let record = memory.record(channel)?;

    let (receive_type, shared, xrcd) = match sizes.receive {
        Receive::Own(_) => (ReceiveQueueType::Regular, 0, 0),
        Receive::Shared(queue) => (ReceiveQueueType::Shared, queue.number, 0),
        Receive::Xrc(queue) => {
            let (number, domain) = queue.numbers();
            (ReceiveQueueType::Shared, number, domain)
        }
        Receive::None => (ReceiveQueueType::Zero, 0, 0),
    };
    // The device posts to the send queue of such a queue pair itself, so it has no ring (linux
    // qp.c: `create_user_qp`).
    let no_send_ring = sizes.send_blocks == 0;
    let offload = match sizes.receive {
        Receive::Shared(queue) if no_send_ring && queue.offloads_rendezvous() => {
            XrqOffload::Rendezvous
        }
        _ => XrqOffload::None,
    };
    let query = if sizes.enhancements { Enhancements::QUERY } else { Enhancements::NONE };
    let mut create = Command::<CreateQpIn>::new();
    create
        .fields()
        .set(CreateQpIn::ECE, query.bits())
        .set(CreateQpIn::WQ_UMEM_VALID, true)
        .set(CreateQpIn::WQ_UMEM_ID, rings.umem_id())
        .set(CreateQpIn::WQ_UMEM_OFFSET, rings.offset())
        .nested(CreateQpIn::QPC)
        .set(Qpc::ST, sizes.service)
        .set(Qpc::OFFLOAD_TYPE, offload)
        .set(Qpc::PM_STATE, PathMigration::Migrated)
        .set(Qpc::PD, domain)
        .set(Qpc::CQN_SND, send_cqn)
        .set(Qpc::CQN_RCV, receive_cqn)
        .set(Qpc::UAR_PAGE, uar.map_or(0, Uar::index))
        .set(Qpc::TS_FORMAT, sizes.timestamps)
        .set(Qpc::USER_INDEX, sizes.user_index)
        .set(Qpc::FULL_HANDSHAKE, sizes.initiator.full_handshake)
        .set(Qpc::LOG_NUM_DCI_STREAM_CHANNELS, sizes.initiator.log_streams)
        .set(Qpc::LOG_NUM_DCI_ERRORED_STREAMS, sizes.initiator.log_errored_streams)
        .set(Qpc::CS_RES, if sizes.inline_receive { SCATTER_32 } else { 0 })
        .set(Qpc::RQ_TYPE, receive_type)
        .set(Qpc::SRQN_RMPN_XRQN, shared)
        .set(Qpc::LOG_RQ_SIZE, sizes.receive.entries().checked_ilog2().unwrap_or(0) as u8)
        .set(Qpc::LOG_RQ_STRIDE, (size_of::<DataSegment>() / 16).ilog2() as u8)
        .set(Qpc::NO_SQ, no_send_ring)
        .set(Qpc::LOG_SQ_SIZE, sizes.send_blocks.checked_ilog2().unwrap_or(0) as u8)
        .set(Qpc::XRCD, xrcd)
        .set(Qpc::DBR_UMEM_VALID, true)
        .set(Qpc::DBR_UMEM_ID, record.umem_id())
        .set(Qpc::DBR_ADDR, record.offset());
    let (object, answer) = create.create(channel)?;
    let number = answer.fields().get(CreateQpOut::QPN);
    let shares = matches!(sizes.receive, Receive::Shared(_));
    let watched = events.and_then(|events| events.watch_pair(channel, &*object, number, shares));
    let enhancements = Enhancements::from_bits(answer.fields().get(CreateQpOut::ECE));
    // SAFETY: the offset lies inside the piece, whose size includes both rings.
    let send_ring = unsafe { rings.start().add(receive_bytes) };
    Ok(PairInfo {
        number,
        user_index: Some(sizes.user_index),
        enhancements,
        send_ring,
        receive_ring: rings.start().cast(),
        doorbell_record: record.start().cast(),
        register: uar.map_or(NonNull::dangling(), Uar::register),
        object: Box::new(CommandPair {
            owned: Owned::new(object, [rings, record]),
            number,
            watched,
        }),
    })
}

/// Queries the context of a queue pair.
pub(crate) fn query_pair(object: &dyn Object, number: u32) -> Result<Answer<QueryQpIn>, Error> {
    let mut query = Command::<QueryQpIn>::new();
    query.fields().set(QueryQpIn::QPN, number);
    query.send_to(object)
}

impl CommandPair {
    /// Runs a state transition. `optional` selects those of its parameters that it need not set.
    fn modify<R: ModifyQp + Request<Answer = ModifyQpOut>>(
        &self,
        optional: OptionalParameters,
        fill: impl FnOnce(ViewMut<'_, Qpc>),
    ) -> Result<(), Error> {
        self.modify_with::<R>(optional, Enhancements::NONE, fill).map(drop)
    }

    /// As [`Self::modify`], and sets enhancements. Returns those that the device accepted.
    fn modify_with<R: ModifyQp + Request<Answer = ModifyQpOut>>(
        &self,
        optional: OptionalParameters,
        enhancements: Enhancements,
        fill: impl FnOnce(ViewMut<'_, Qpc>),
    ) -> Result<Enhancements, Error> {
        let mut command = Command::<R>::new();
        let mut fields = command.fields();
        fields
            .set(R::QPN, self.number)
            .set(R::OPT_PARAM_MASK, optional.bits())
            .set(R::ECE, enhancements.bits());
        fill(fields.nested(R::QPC));
        let answer = command.send_to(self.owned.object())?;
        Ok(Enhancements::from_bits(answer.fields().get(ModifyQpOut::ECE)))
    }
}

/// Scatter of received messages of up to 32 bytes to the CQE (`MLX5_QPC_CS_RES_UP_TO_32B`).
const SCATTER_32: u8 = 1;

/// The peer's rights. Some drivers set them in one transition and some in another, so this one sets
/// them in both.
const RIGHTS: OptionalParameters = OptionalParameters::REMOTE_READ
    .union(OptionalParameters::REMOTE_WRITE)
    .union(OptionalParameters::REMOTE_ATOMIC);
/// The device requests an acknowledgment at least every 2^n packets, as the kernel's driver
/// configures it (`MLX5_IB_ACK_REQ_FREQ`). With 0, every packet would be acknowledged.
const LOG_ACK_FREQUENCY: u8 = 8;

/// A datagram is at most as long as the longest packet (the kernel's driver does the same).
const LOG_LONGEST_DATAGRAM: u8 = 12;

/// Sets the peer's rights.
fn set_rights(qpc: &mut ViewMut<'_, Qpc>, access: Access, masked_atomics: bool) {
    let atomic = access.contains(Access::REMOTE_ATOMIC);
    let mode = match (atomic, masked_atomics) {
        (false, _) => AtomicMode::None,
        (true, false) => AtomicMode::IbSpec,
        (true, true) => AtomicMode::UpTo8,
    };
    qpc.set(Qpc::RRE, access.contains(Access::REMOTE_READ))
        .set(Qpc::RWE, access.contains(Access::REMOTE_WRITE))
        .set(Qpc::RAE, atomic)
        .set(Qpc::ATOMIC_MODE, mode);
}

impl Pair for CommandPair {
    fn is_drained(&self) -> Option<bool> {
        self.watched.as_ref()?.is_drained()
    }

    fn initialise(&self, port: &Port, initial: &Initial) -> Result<(), Error> {
        self.modify::<Rst2InitQpIn>(OptionalParameters::empty(), |mut qpc| {
            match *initial {
                Initial::Connected { access, masked_atomics } => {
                    set_rights(&mut qpc, access, masked_atomics);
                }
                Initial::Datagrams { queue_key } => {
                    qpc.set(Qpc::Q_KEY, queue_key);
                }
            }
            // Without a port, a bonded card may send everything through its first.
            let lag_port = self.number.checked_rem(port.lag_ports.into()).map_or(0, |at| at + 1);
            qpc.set(Qpc::PM_STATE, PathMigration::Migrated)
                .set(Qpc::COUNTER_SET_ID, port.counter_set)
                .set(Qpc::LAG_TX_PORT_AFFINITY, lag_port as u8)
                .nested(Qpc::PRIMARY_ADDRESS_PATH)
                .set(AddressPath::PKEY_INDEX, port.partition_index)
                .set(AddressPath::VHCA_PORT_NUM, port.number);
        })
    }

    fn connect(&self, port: &Port, path: &Path<'_>) -> Result<Enhancements, Error> {
        let wanted = path.wanted;
        let accepted =
            self.modify_with::<Init2RtrQpIn>(RIGHTS, wanted.enhancements, |mut qpc| {
                set_rights(&mut qpc, path.access, path.masked_atomics);
                let mut qpc = qpc
                    .set(Qpc::MTU, path.mtu)
                    .set(Qpc::LOG_MSG_MAX, path.log_max_message)
                    .set(Qpc::REMOTE_QPN, wanted.remote_qpn)
                    .set(Qpc::LOG_RRA_MAX, path.log_responder_reads)
                    .set(Qpc::MIN_RNR_NAK, wanted.min_rnr_nak)
                    .set(Qpc::NEXT_RCV_PSN, wanted.receive_psn)
                    .nested(Qpc::PRIMARY_ADDRESS_PATH);
                qpc.set_array(AddressPath::RGID_RIP, wanted.remote.gid)
                    .set(AddressPath::SRC_ADDR_INDEX, port.gid_index)
                    .set(AddressPath::HOP_LIMIT, 64)
                    .set(AddressPath::VHCA_PORT_NUM, port.number);
                match path.port_type {
                    PortType::Ethernet => {
                        let qpc = qpc
                            .set_array(AddressPath::RMAC, path.mac)
                            .set(AddressPath::ETH_PRIO, wanted.service_level & 7);
                        // As the kernel (linux qp.c: `mlx5_set_path`).
                        if port.uses_udp {
                            qpc.set(AddressPath::DSCP, wanted.traffic_class >> 2)
                                .set(AddressPath::UDP_SPORT, path.udp_source_port);
                        } else {
                            qpc.set(AddressPath::TCLASS, wanted.traffic_class);
                        }
                    }
                    PortType::InfiniBand => {
                        qpc.set(AddressPath::RLID, wanted.remote.lid)
                            .set(AddressPath::TCLASS, wanted.traffic_class)
                            .set(AddressPath::SL, wanted.service_level)
                            .set(AddressPath::GRH, wanted.remote.lid == 0 || port.global_route);
                    }
                }
            })?;
        self.modify::<Rtr2RtsQpIn>(OptionalParameters::empty(), |mut qpc| {
            qpc.set(Qpc::LOG_ACK_REQ_FREQ, LOG_ACK_FREQUENCY)
                .set(Qpc::RETRY_COUNT, wanted.retry_count)
                .set(Qpc::RNR_RETRY, wanted.rnr_retry)
                .set(Qpc::LOG_SRA_MAX, path.log_requester_reads)
                .set(Qpc::NEXT_SEND_PSN, path.send_psn)
                .nested(Qpc::PRIMARY_ADDRESS_PATH)
                .set(AddressPath::ACK_TIMEOUT, wanted.ack_timeout)
                .set(AddressPath::VHCA_PORT_NUM, port.number);
        })?;
        Ok(accepted)
    }

    fn activate(&self, port: &Port) -> Result<(), Error> {
        self.modify::<Init2RtrQpIn>(OptionalParameters::empty(), |mut qpc| {
            qpc.set(Qpc::MTU, Mtu::Bytes4096)
                .set(Qpc::LOG_MSG_MAX, LOG_LONGEST_DATAGRAM)
                .nested(Qpc::PRIMARY_ADDRESS_PATH)
                .set(AddressPath::VHCA_PORT_NUM, port.number);
        })?;
        self.modify::<Rtr2RtsQpIn>(OptionalParameters::empty(), |mut qpc| {
            qpc.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::VHCA_PORT_NUM, port.number);
        })
    }

    fn fail(&self) -> Result<(), Error> {
        let mut command = Command::<ToErrQpIn>::new();
        command.fields().set(ToErrQpIn::QPN, self.number);
        command.send_to(self.owned.object()).map(drop)
    }

    fn reset(&self) -> Result<(), Error> {
        self.watched.iter().for_each(Watched::reset);
        let mut command = Command::<ToRstQpIn>::new();
        command.fields().set(ToRstQpIn::QPN, self.number);
        command.send_to(self.owned.object()).map(drop)
    }

    fn reset_stream(&self, stream: u16) -> Result<(), Error> {
        let mut command = Command::<Rts2RtsQpIn>::new();
        command.fields().set(Rts2RtsQpIn::QPN, self.number).set(Rts2RtsQpIn::QPC_EXT, true).set(
            Rts2RtsQpIn::OPT_PARAM_MASK_95_32,
            ExtendedParameters::DCI_STREAM_CHANNEL_ID.bits(),
        );
        command.extension::<QpcExt>().set(QpcExt::DCI_STREAM_CHANNEL_ID, stream);
        command.send_to(self.owned.object()).map(drop)
    }

    fn state(&self) -> Result<QpState, Error> {
        let answer = query_pair(self.owned.object(), self.number)?;
        Ok(answer.fields().nested(QueryQpOut::QPC).get(Qpc::STATE)?)
    }

    fn read_back(&self) -> Result<Vec<(&'static str, u64)>, Error> {
        let answer = query_pair(self.owned.object(), self.number)?;
        Ok(readback::fields(answer.fields().nested(QueryQpOut::QPC)))
    }
}
