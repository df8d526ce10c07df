//! Completion queues and queue pairs of tests.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use barewire_hca::UmemAccess;
use barewire_layouts::be::Be32;
use barewire_layouts::command::answer;
use barewire_layouts::command::cq::{Cqc, CqeSize, CreateCqIn, CreateCqOut, DestroyCqIn};
use barewire_layouts::command::qp::{
    AddressPath, AtomicMode, CreateQpIn, CreateQpOut, DestroyQpIn, Init2RtrQpIn, ModifyQp, Mtu,
    OptionalParameters, Qpc, Rst2InitQpIn, Rtr2RtsQpIn, ServiceType, ToErrQpIn, ToRstQpIn,
};
use barewire_layouts::cqe::{
    Cqe64, CqeOpcode, ErrorCqe, INITIAL_OP_OWN, OP_OWN_OFFSET, OWNER, PacketFields, Syndrome,
};
use barewire_layouts::doorbell::{BLUEFLAME_HALF, BLUEFLAME_OFFSET, CqArm};
use barewire_layouts::prm::ViewMut;
use barewire_layouts::wqe::{DS, DataSegment, INVALID_LKEY, WQEBB};
use zerocopy::{FromBytes, IntoBytes};

use super::objects::{Rings, describe_cq, describe_qp};
use super::{Memory, Node, Wqe, command};

const CQE: usize = 64;
/// Few entries for Miri, which takes long to initialise them.
pub const LOG_CQ: u8 = if cfg!(miri) { 5 } else { 10 };
pub const LOG_SQ: u8 = 6;
pub const LOG_RQ: u8 = 5;
/// Receive WQEs hold four segments.
pub const LOG_RQ_STRIDE: u8 = 2;
const RQ_STRIDE: usize = 16 << LOG_RQ_STRIDE;
const RQ_BYTES: usize = RQ_STRIDE << LOG_RQ;
const SQ_BYTES: usize = WQEBB << LOG_SQ;

/// One completion, good or bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub opcode: CqeOpcode,
    pub qpn: u32,
    pub index: u16,
    pub length: u32,
    pub immediate: u32,
    pub syndrome: Option<Syndrome>,
    /// The user's own number of the queue pair, target or shared receive queue.
    pub user_index: u32,
    /// Of a datagram: the sender's queue pair and LID, and the flags that go with them.
    pub packet: PacketFields,
}

impl Completion {
    pub fn is_ok(&self) -> bool {
        self.syndrome.is_none()
    }
}

pub struct Cq {
    node: Node,
    pub number: u32,
    memory: Memory,
    entries: usize,
    entry: usize,
    consumer: u32,
    sequence: u8,
    /// The whole entry that was polled last.
    pub last: Vec<u8>,
}

impl Cq {
    pub fn new(node: &Node, log_size: u8) -> Self {
        Self::with(node, log_size, CqeSize::Bytes64, |_| ())
    }

    /// One that reports to event queue `eqn`.
    pub fn reporting(node: &Node, log_size: u8, eqn: u32) -> Self {
        Self::with(node, log_size, CqeSize::Bytes64, |context| _ = context.set(Cqc::C_EQN, eqn))
    }

    pub fn with(
        node: &Node,
        log_size: u8,
        entry_size: CqeSize,
        change: impl FnOnce(&mut ViewMut<'_, Cqc>),
    ) -> Self {
        let (entries, entry) = (1 << log_size, entry_size.bytes());
        let memory = Memory::register(&node.device, entries * entry + 64, UmemAccess::LOCAL_WRITE);
        for number in 1..=entries {
            memory.write(number * entry - 1, &[INITIAL_OP_OWN]);
        }
        let output = command::<CreateCqIn>(&node.device, |create| {
            let rings = Rings { umem: memory.umem(), ring: 0, record: (entries * entry) as u64 };
            describe_cq(create, node, rings, log_size);
            let mut context = create.nested(CreateCqIn::CQ_CONTEXT);
            context.set(Cqc::CQE_SZ, entry_size);
            change(&mut context);
        })
        .unwrap();
        let number = answer::<CreateCqIn>(&output).unwrap().get(CreateCqOut::CQN);
        Self {
            node: node.clone(),
            number,
            memory,
            entries,
            entry,
            consumer: 0,
            sequence: 0,
            last: Vec::new(),
        }
    }

    /// Returns the ring, its entries, and the consumer word of the doorbell record, for another
    /// reader than [`Cq::poll`].
    pub fn parts(&self) -> (NonNull<u8>, u32, NonNull<u32>) {
        let start = self.memory.start();
        // SAFETY: the record lies behind the ring, in the same allocation.
        let record = unsafe { start.add(self.entries * self.entry) };
        (start, self.entries as u32, record.cast())
    }

    /// Asks for an event of the next completion, or the next solicited one.
    pub fn arm(&mut self, solicited_only: bool) {
        let arm = self.note_arm(solicited_only);
        super::events::ring_cq(&self.node, arm, self.number);
    }

    /// The first half of arming: the doorbell record.
    pub fn note_arm(&mut self, solicited_only: bool) -> CqArm {
        let arm = CqArm {
            sequence: self.sequence,
            solicited_only,
            consumer: self.consumer & 0x00ff_ffff,
        };
        self.sequence = (self.sequence + 1) % 4;
        self.memory.store_be32(self.entries * self.entry + 4, arm.bits());
        arm
    }

    pub fn poll(&mut self) -> Option<Completion> {
        let at = (self.consumer as usize % self.entries + 1) * self.entry - CQE;
        let lap = (self.consumer as usize / self.entries) as u8 & OWNER;
        let op_own = self.memory.load_byte(at + OP_OWN_OFFSET);
        if op_own & OWNER != lap || op_own >> 4 == CqeOpcode::Invalid as u8 {
            return None;
        }
        let bytes = self.memory.read(at, CQE);
        self.last = self.memory.read(at + CQE - self.entry, self.entry);
        let cqe = Cqe64::read_from_bytes(&bytes).unwrap();
        let error = ErrorCqe::read_from_bytes(&bytes).unwrap();
        let opcode = CqeOpcode::from_bits(cqe.opcode()).expect("a known CQE opcode");
        let failed = matches!(opcode, CqeOpcode::RequesterError | CqeOpcode::ResponderError);
        self.consumer += 1;
        self.memory.store_be32(self.entries * self.entry, self.consumer & 0x00ff_ffff);
        Some(Completion {
            opcode,
            qpn: cqe.qpn(),
            index: cqe.wqe_counter.get(),
            length: if failed { 0 } else { cqe.byte_count.get() },
            immediate: if failed { 0 } else { cqe.immediate.get() },
            user_index: cqe.srqn_user_index.get(),
            packet: cqe.packet(),
            syndrome: failed
                .then(|| Syndrome::from_bits(error.syndrome).expect("a known syndrome")),
        })
    }

    pub fn drain(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.poll()).collect()
    }

    /// Waits for a completion of a threaded device.
    pub fn wait(&mut self) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            assert!(
                Instant::now() < deadline,
                "no completion came: {:?}",
                self.node.device.counters()
            );
            std::thread::yield_now();
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let destroyed = command::<DestroyCqIn>(&self.node.device, |destroy| {
            destroy.set(DestroyCqIn::CQN, self.number);
        });
        assert!(destroyed.is_ok() || std::thread::panicking(), "{destroyed:?}");
    }
}

/// How two queue pairs are connected.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    pub mtu: Mtu,
    pub psn: u32,
    pub ack_timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub min_rnr_nak: u8,
    pub log_depth: u8,
    pub remote_read: bool,
    pub remote_write: bool,
    pub remote_atomic: bool,
    pub qkey: u32,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            mtu: Mtu::Bytes256,
            psn: 0x1000,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_nak: 1,
            log_depth: 2,
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            qkey: 0x1111_1111,
        }
    }
}

/// A queue pair with its own completion queues.
pub struct Qp {
    pub node: Node,
    pub number: u32,
    pub send_cq: Cq,
    pub receive_cq: Cq,
    memory: Memory,
    pub producer: u16,
    pub receive_producer: u16,
    half: usize,
    destroyed: bool,
    /// Where the send ring starts.
    send_ring: usize,
    /// The counter set to be named, and the index of the own address, when it is connected.
    pub counter_set: u8,
    pub source_index: u8,
    /// The port.
    pub port: u8,
}

const DOORBELL: usize = RQ_BYTES + SQ_BYTES;

impl Qp {
    pub fn new(node: &Node) -> Self {
        Self::with_cqs(node, LOG_CQ, LOG_CQ)
    }

    pub fn with_cqs(node: &Node, log_send: u8, log_receive: u8) -> Self {
        Self::with(node, Cq::new(node, log_send), Cq::new(node, log_receive), |_| ())
    }

    /// A queue pair of another transport service.
    pub fn with_service(node: &Node, service: ServiceType) -> Self {
        let (send_cq, receive_cq) = (Cq::new(node, LOG_CQ), Cq::new(node, LOG_CQ));
        Self::with(node, send_cq, receive_cq, |context| _ = context.set(Qpc::ST, service))
    }

    /// One with `change`s in its context; its rings stay as long as they are.
    pub fn with(
        node: &Node,
        send_cq: Cq,
        receive_cq: Cq,
        change: impl FnOnce(&mut ViewMut<'_, Qpc>),
    ) -> Self {
        let memory = Memory::register(&node.device, DOORBELL + 64, UmemAccess::LOCAL_WRITE);
        let output = command::<CreateQpIn>(&node.device, |create| {
            let rings = Rings { umem: memory.umem(), ring: 0, record: DOORBELL as u64 };
            describe_qp(create, node, rings, (send_cq.number, receive_cq.number));
            let mut context = create.nested(CreateQpIn::QPC);
            context
                .set(Qpc::USER_INDEX, 0x77)
                .set(Qpc::LOG_RQ_SIZE, LOG_RQ)
                .set(Qpc::LOG_RQ_STRIDE, LOG_RQ_STRIDE)
                .set(Qpc::LOG_SQ_SIZE, LOG_SQ);
            change(&mut context);
        })
        .unwrap();
        let number = answer::<CreateQpIn>(&output).unwrap().get(CreateQpOut::QPN);
        Self {
            node: node.clone(),
            number,
            send_cq,
            receive_cq,
            memory,
            producer: 0,
            receive_producer: 0,
            half: 0,
            destroyed: false,
            send_ring: RQ_BYTES,
            counter_set: 0,
            source_index: 0,
            port: 1,
        }
    }

    /// The context says that there is none, so the send ring comes first.
    pub fn without_receive_ring(&mut self) {
        self.send_ring = 0;
    }

    /// Moves the queue pair to RTS; `psns` are those of the first packet sent and of the first
    /// expected.
    pub fn connect(
        &mut self,
        peer: &Node,
        peer_qpn: u32,
        connection: &Connection,
        psns: (u32, u32),
    ) {
        self.connect_to(peer.device.gid(), peer_qpn, connection, psns);
    }

    pub fn connect_to(
        &mut self,
        gid: [u8; 16],
        peer_qpn: u32,
        connection: &Connection,
        psns: (u32, u32),
    ) {
        self.ready_to_receive(gid, peer_qpn, connection, psns.1);
        self.ready_to_send(connection, psns.0);
    }

    /// Moves the queue pair to RTR.
    pub fn ready_to_receive(
        &mut self,
        gid: [u8; 16],
        peer_qpn: u32,
        connection: &Connection,
        psn: u32,
    ) {
        let device = &self.node.device;
        let rights = OptionalParameters::REMOTE_READ
            | OptionalParameters::REMOTE_WRITE
            | OptionalParameters::REMOTE_ATOMIC;
        command::<Rst2InitQpIn>(device, |modify| {
            modify
                .set(Rst2InitQpIn::QPN, self.number)
                .set(Rst2InitQpIn::OPT_PARAM_MASK, rights.bits());
            let mut context = modify.nested(Rst2InitQpIn::QPC);
            context
                .set(Qpc::Q_KEY, connection.qkey)
                .set(Qpc::COUNTER_SET_ID, self.counter_set)
                .set(Qpc::RRE, connection.remote_read)
                .set(Qpc::RWE, connection.remote_write)
                .set(Qpc::RAE, connection.remote_atomic)
                .set(Qpc::ATOMIC_MODE, AtomicMode::IbSpec);
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::VHCA_PORT_NUM, self.port);
        })
        .unwrap();
        command::<Init2RtrQpIn>(device, |modify| {
            modify.set(Init2RtrQpIn::QPN, self.number);
            let mut context = modify.nested(Init2RtrQpIn::QPC);
            context
                .set(Qpc::MTU, connection.mtu)
                .set(Qpc::LOG_MSG_MAX, 30)
                .set(Qpc::REMOTE_QPN, peer_qpn)
                .set(Qpc::LOG_RRA_MAX, connection.log_depth)
                .set(Qpc::MIN_RNR_NAK, connection.min_rnr_nak)
                .set(Qpc::NEXT_RCV_PSN, psn & 0x00ff_ffff);
            context
                .nested(Qpc::PRIMARY_ADDRESS_PATH)
                .set(AddressPath::VHCA_PORT_NUM, self.port)
                .set(AddressPath::SRC_ADDR_INDEX, self.source_index)
                .set_array(AddressPath::RGID_RIP, gid);
        })
        .unwrap();
    }

    /// From there to RTS.
    pub fn ready_to_send(&mut self, connection: &Connection, psn: u32) {
        command::<Rtr2RtsQpIn>(&self.node.device, |modify| {
            modify.set(Rtr2RtsQpIn::QPN, self.number);
            let mut context = modify.nested(Rtr2RtsQpIn::QPC);
            context
                .set(Qpc::LOG_SRA_MAX, connection.log_depth)
                .set(Qpc::RETRY_COUNT, connection.retry_count)
                .set(Qpc::RNR_RETRY, connection.rnr_retry)
                .set(Qpc::NEXT_SEND_PSN, psn & 0x00ff_ffff);
            context
                .nested(Qpc::PRIMARY_ADDRESS_PATH)
                .set(AddressPath::ACK_TIMEOUT, connection.ack_timeout);
        })
        .unwrap();
    }

    /// Resets the queue pair, and its driver's counters with it.
    pub fn reset(&mut self) {
        self.reset_device();
        self.memory.store_be32(DOORBELL, 0);
        self.memory.store_be32(DOORBELL + 4, 0);
    }

    /// Resets the device's part, and leaves the doorbell record as it is, as UCX does.
    pub fn reset_device(&mut self) {
        command::<ToRstQpIn>(&self.node.device, |reset| {
            reset.set(ToRstQpIn::QPN, self.number);
        })
        .unwrap();
        (self.producer, self.receive_producer) = (0, 0);
    }

    pub fn to_error(&self) {
        command::<ToErrQpIn>(&self.node.device, |modify| {
            modify.set(ToErrQpIn::QPN, self.number);
        })
        .unwrap();
    }

    pub fn destroy(&mut self) {
        command::<DestroyQpIn>(&self.node.device, |destroy| {
            destroy.set(DestroyQpIn::QPN, self.number);
        })
        .unwrap();
        self.destroyed = true;
    }

    fn ring_write(&self, index: u16, bytes: &[u8]) {
        for (number, unit) in bytes.chunks(DS).enumerate() {
            let at = (usize::from(index) * WQEBB + number * DS) % SQ_BYTES;
            self.memory.write(self.send_ring + at, unit);
        }
    }

    /// Writes WQE bytes at the producer index and posts them in the doorbell record. Returns index
    /// and bytes.
    pub fn place_bytes(&mut self, bytes: Vec<u8>) -> (u16, Vec<u8>) {
        let index = self.producer;
        self.ring_write(index, &bytes);
        self.producer = index.wrapping_add(bytes.len().div_ceil(WQEBB) as u16);
        self.memory.store_be32(DOORBELL + 4, u32::from(self.producer));
        (index, bytes)
    }

    pub fn place(&mut self, wqe: &Wqe) -> (u16, Vec<u8>) {
        self.place_bytes(wqe.bytes(self.producer, self.number))
    }

    /// Stores `bytes` at the BlueFlame register, in whole words, the first first.
    pub fn ring(&mut self, bytes: &[u8]) {
        fence(Ordering::SeqCst);
        self.store(self.half, 0, bytes);
        self.half ^= 1;
    }

    /// Stores all but the first 8 of `bytes` at the register that was rung last.
    pub fn finish_burst(&mut self, bytes: &[u8]) {
        self.store(self.half ^ 1, 8, &bytes[8..]);
    }

    fn store(&self, half: usize, offset: usize, bytes: &[u8]) {
        let start = BLUEFLAME_OFFSET + half * BLUEFLAME_HALF + offset;
        for (number, word) in
            bytes[..bytes.len().min(BLUEFLAME_HALF - offset)].chunks_exact(8).enumerate()
        {
            let word = u64::from_ne_bytes(word.try_into().unwrap());
            // SAFETY: an aligned word inside the UAR page, which `node` holds.
            let register = unsafe {
                AtomicU64::from_ptr(self.node.page.as_ptr().add(start + number * 8).as_ptr().cast())
            };
            register.store(word, Ordering::Release);
        }
    }

    /// Posts a WQE by BlueFlame if it fits, else by a plain doorbell; gives its index.
    pub fn post(&mut self, wqe: &Wqe) -> u16 {
        let (index, bytes) = self.place(wqe);
        let length = if bytes.len() <= BLUEFLAME_HALF { bytes.len() } else { 8 };
        self.ring(&bytes[..length]);
        index
    }

    /// Posts by a plain doorbell.
    pub fn post_plain(&mut self, wqe: &Wqe) -> u16 {
        let (index, bytes) = self.place(wqe);
        self.ring(&bytes[..8]);
        index
    }

    /// Posts a receive WQE with up to three segments `(address, length, lkey)`; gives its index.
    pub fn post_receive(&mut self, segments: &[(u64, usize, u32)]) -> u16 {
        let index = self.receive_producer;
        let start = (usize::from(index) % (1 << LOG_RQ)) * RQ_STRIDE;
        let mut bytes = Vec::new();
        for &(address, length, lkey) in segments {
            bytes.extend(DataSegment::new(address, length as u32, lkey).as_bytes());
        }
        if bytes.len() < RQ_STRIDE {
            let end = DataSegment { lkey: Be32::new(INVALID_LKEY), ..DataSegment::default() };
            bytes.extend(end.as_bytes());
        }
        self.memory.write(start, &bytes);
        self.receive_producer = index.wrapping_add(1);
        self.memory.store_be32(DOORBELL, u32::from(self.receive_producer));
        index
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if !self.destroyed {
            let destroyed = command::<DestroyQpIn>(&self.node.device, |destroy| {
                destroy.set(DestroyQpIn::QPN, self.number);
            });
            assert!(destroyed.is_ok() || std::thread::panicking(), "{destroyed:?}");
        }
    }
}
