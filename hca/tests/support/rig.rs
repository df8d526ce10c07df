//! Commands as methods that return the device's refusal, on rings at fixed offsets of one memory.

mod services;

use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::Deref;
use std::ptr::NonNull;

use barewire_hca::{
    CommandSyndrome, Config, Fabric, Mode, ReservedBits, UmemAccess, UmemError, WireKind,
};
use barewire_layouts::command::cq::{CreateCqIn, CreateCqOut, DestroyCqIn};
use barewire_layouts::command::eq::{CreateEqIn, CreateEqOut, Eqc};
use barewire_layouts::command::mkey::{CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn};
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut, DeallocPdIn};
use barewire_layouts::command::qp::{
    AddressPath, AtomicMode, CreateQpIn, CreateQpOut, DestroyQpIn, Init2RtrQpIn, ModifyQp, Mtu,
    QpState, Qpc, QueryQpIn, QueryQpOut, Rst2InitQpIn, Rtr2RtsQpIn, ToErrQpIn, ToRstQpIn,
};
use barewire_layouts::command::rmp::{CreateRmpIn, CreateRmpOut, RmpState, Rmpc, Wq};
use barewire_layouts::command::uar::{AllocUarIn, AllocUarOut, DeallocUarIn};
use barewire_layouts::command::{CommandStatus, Request, answer};
use barewire_layouts::prm::{View, ViewMut};

use super::objects::{Rings, describe_cq, describe_key, describe_qp};
use super::{Node, Rights, execute, input, run};

/// Bytes of a rig's memory.
pub const MEMORY: usize = 1 << 20;
/// Offsets of a rig's CQ ring, QP rings and doorbell records. The rest of its memory is unused.
pub const CQ_RING: u64 = 0x1_0000;
pub const QP_RINGS: u64 = 0x2_0000;
pub const CQ_DOORBELL: u64 = 0x100;
pub const QP_DOORBELL: u64 = 0x140;

/// The same for an EQ ring, an RMP ring and its doorbell record.
const EQ_RING: u64 = 0x3_0000;
const RMP_RING: u64 = 0x4_0000;
const RMP_DOORBELL: u64 = 0x180;
/// The same for an XRC SRQ.
const XRC_SRQ_RING: u64 = 0x5_0000;
const XRC_SRQ_DOORBELL: u64 = 0x1c0;

const PAGE: usize = 4096;

/// A page of memory, for alignment.
#[derive(Clone)]
#[repr(align(4096))]
struct Page {
    _bytes: [u8; PAGE],
}

/// A refused command.
pub type Refusal = (CommandStatus, CommandSyndrome);

/// A node with one umem.
pub struct Rig {
    node: Node,
    /// The memory that the umem covers.
    pub memory: NonNull<u8>,
    pub umem: u32,
    /// The requests that were made.
    pub requests: RefCell<Vec<Vec<u8>>>,
    /// Dropped after the device, which may touch it until then.
    pages: Pages,
}

impl Deref for Rig {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

/// [`MEMORY`] bytes between two guard pages.
struct Pages(NonNull<[Page]>);

impl Pages {
    fn new() -> Self {
        Self(NonNull::from(Box::leak(
            vec![Page { _bytes: [0; PAGE] }; MEMORY / PAGE + 2].into_boxed_slice(),
        )))
    }

    fn memory(&self) -> NonNull<u8> {
        // SAFETY: the second page of at least two.
        unsafe { self.0.cast::<u8>().add(PAGE) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: leaked in `new`, and freed here only.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Rig {
    /// A stepped device on a new fabric.
    pub fn new() -> Self {
        let wire = WireKind::Fabric(Fabric::new());
        let reserved_bits = ReservedBits::Refuse;
        Self::open(Config::default().mode(Mode::Stepped).wire(wire).reserved_bits(reserved_bits))
    }

    pub fn open(config: Config) -> Self {
        let node = Node::open(config);
        let pages = Pages::new();
        let memory = pages.memory();
        // SAFETY: the pages are freed after the device is dropped, and tests access them through
        // raw pointers only.
        let umem = unsafe { node.device.register_umem(memory, MEMORY, UmemAccess::LOCAL_WRITE) };
        let umem = umem.expect("the first registration");
        let requests = RefCell::new(vec![input::<AllocPdIn>(|_| ()), input::<AllocUarIn>(|_| ())]);
        Self { node, memory, umem, requests, pages }
    }

    /// Stores bytes at an offset of the memory.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let offset = offset as usize;
        assert!(offset <= MEMORY && bytes.len() <= MEMORY - offset);
        // SAFETY: inside the memory, which only raw pointers touch.
        unsafe {
            self.memory
                .add(offset)
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        };
    }

    /// Whether nothing was written to the guard pages.
    pub fn guards_intact(&self) -> bool {
        let before = self.pages.0.cast::<u8>();
        // SAFETY: both guard pages are inside the allocation, and no other thread writes to them.
        let guards = unsafe {
            [before, self.memory.add(MEMORY)].map(|guard| guard.cast::<[u8; PAGE]>().read())
        };
        guards == [[0; PAGE]; 2]
    }

    /// Runs the bytes of a command.
    pub fn execute(&self, input: &[u8], output: &mut [u8]) {
        execute(&self.device, input, output);
    }

    /// Ends a registration.
    pub fn deregister(&self, umem: u32) -> Result<(), UmemError> {
        // SAFETY: the memory of a rig is freed after the device is dropped.
        unsafe { self.device.deregister_umem(umem) }
    }

    /// Executes a command that `fill` completes, and reads its output with `read`.
    pub fn run<R: Request, T>(
        &self,
        fill: impl FnOnce(&mut ViewMut<'_, R>),
        read: impl FnOnce(View<'_, R::Answer>) -> T,
    ) -> Result<T, Refusal> {
        let input = input::<R>(fill);
        let output = run::<R>(&self.device, &input);
        self.requests.borrow_mut().push(input);
        let output = output.map_err(|error| {
            let syndrome =
                CommandSyndrome::from_bits(error.syndrome).expect("a syndrome of the device");
            (error.status.expect("a known status"), syndrome)
        })?;
        Ok(read(answer::<R>(&output).expect("a success")))
    }

    pub fn alloc_pd(&self) -> Result<u32, Refusal> {
        self.run::<AllocPdIn, _>(|_| (), |answer| answer.get(AllocPdOut::PD))
    }

    pub fn dealloc_pd(&self, pd: u32) -> Result<(), Refusal> {
        self.run::<DeallocPdIn, _>(|request| _ = request.set(DeallocPdIn::PD, pd), |_| ())
    }

    pub fn alloc_uar(&self) -> Result<u32, Refusal> {
        self.run::<AllocUarIn, _>(|_| (), |answer| answer.get(AllocUarOut::UAR))
    }

    pub fn dealloc_uar(&self, uar: u32) -> Result<(), Refusal> {
        self.run::<DeallocUarIn, _>(|request| _ = request.set(DeallocUarIn::UAR, uar), |_| ())
    }

    /// An EQ of 16 entries that takes every asynchronous event.
    pub fn create_eq(&self) -> Result<u32, Refusal> {
        self.run::<CreateEqIn, _>(
            |request| {
                request
                    .set(CreateEqIn::EQ_UMEM_ID, self.umem)
                    .set(CreateEqIn::EQ_UMEM_OFFSET, EQ_RING)
                    .set(CreateEqIn::EVENT_BITMASK_0, u64::MAX)
                    .nested(CreateEqIn::EQ_CONTEXT_ENTRY)
                    .set(Eqc::LOG_EQ_SIZE, 4)
                    .set(Eqc::UAR_PAGE, self.uar);
            },
            |answer| answer.get(CreateEqOut::EQ_NUMBER),
        )
    }

    /// A linked-list RMP of 16 WQEs of 64 bytes.
    pub fn create_rmp(&self) -> Result<u32, Refusal> {
        self.run::<CreateRmpIn, _>(
            |request| {
                let mut context = request.nested(CreateRmpIn::CTX);
                context.set(Rmpc::STATE, RmpState::Ready);
                context
                    .nested(Rmpc::WQ)
                    .set(Wq::PD, self.pd)
                    .set(Wq::LWM, 3)
                    .set(Wq::LOG_WQ_STRIDE, 6)
                    .set(Wq::LOG_WQ_SZ, 4)
                    .set(Wq::DBR_UMEM_ID, self.umem)
                    .set(Wq::DBR_ADDR, RMP_DOORBELL)
                    .set(Wq::WQ_UMEM_ID, self.umem)
                    .set(Wq::WQ_UMEM_OFFSET, RMP_RING);
            },
            |answer| answer.get(CreateRmpOut::RMPN),
        )
    }

    /// A CQ of 16 entries, changed by `change`.
    pub fn create_cq(
        &self,
        change: impl FnOnce(&mut ViewMut<'_, CreateCqIn>),
    ) -> Result<u32, Refusal> {
        self.run::<CreateCqIn, _>(
            |request| {
                let rings = Rings { umem: self.umem, ring: CQ_RING, record: CQ_DOORBELL };
                describe_cq(request, self, rings, 4);
                change(request);
            },
            |answer| answer.get(CreateCqOut::CQN),
        )
    }

    pub fn destroy_cq(&self, cqn: u32) -> Result<(), Refusal> {
        self.run::<DestroyCqIn, _>(|request| _ = request.set(DestroyCqIn::CQN, cqn), |_| ())
    }

    /// A QP of 16 WQEBBs and 8 receive WQEs of 64 bytes, changed by `change`.
    pub fn create_qp(
        &self,
        cqn: u32,
        change: impl FnOnce(&mut ViewMut<'_, CreateQpIn>),
    ) -> Result<u32, Refusal> {
        self.create_qp_and(cqn, change, |answer| answer.get(CreateQpOut::QPN))
    }

    /// As [`Self::create_qp`], and reads the output.
    pub fn create_qp_and<T>(
        &self,
        cqn: u32,
        change: impl FnOnce(&mut ViewMut<'_, CreateQpIn>),
        read: impl FnOnce(View<'_, CreateQpOut>) -> T,
    ) -> Result<T, Refusal> {
        self.run::<CreateQpIn, _>(
            |request| {
                let rings = Rings { umem: self.umem, ring: QP_RINGS, record: QP_DOORBELL };
                describe_qp(request, self, rings, (cqn, cqn));
                request
                    .nested(CreateQpIn::QPC)
                    .set(Qpc::LOG_RQ_SIZE, 3)
                    .set(Qpc::LOG_RQ_STRIDE, 2)
                    .set(Qpc::LOG_SQ_SIZE, 4)
                    .set(Qpc::USER_INDEX, 0x1234);
                change(request);
            },
            read,
        )
    }

    pub fn destroy_qp(&self, qpn: u32) -> Result<(), Refusal> {
        self.run::<DestroyQpIn, _>(|request| _ = request.set(DestroyQpIn::QPN, qpn), |_| ())
    }

    fn modify<R: ModifyQp + Request>(
        &self,
        qpn: u32,
        fill: impl FnOnce(&mut ViewMut<'_, Qpc>),
        change: impl FnOnce(&mut ViewMut<'_, Qpc>),
    ) -> Result<(), Refusal> {
        self.run::<R, _>(
            |request| {
                request.set(R::QPN, qpn);
                let mut context = request.nested(R::QPC);
                fill(&mut context);
                change(&mut context);
            },
            |_| (),
        )
    }

    pub fn rst2init(
        &self,
        qpn: u32,
        change: impl FnOnce(&mut ViewMut<'_, Qpc>),
    ) -> Result<(), Refusal> {
        let fill = |context: &mut ViewMut<'_, Qpc>| {
            context.set(Qpc::RRE, true).set(Qpc::RWE, true).set(Qpc::RAE, true);
            context.set(Qpc::ATOMIC_MODE, AtomicMode::UpTo8);
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::VHCA_PORT_NUM, 1);
        };
        self.modify::<Rst2InitQpIn>(qpn, fill, change)
    }

    pub fn init2rtr(
        &self,
        qpn: u32,
        (peer, remote_qpn): (IpAddr, u32),
        change: impl FnOnce(&mut ViewMut<'_, Qpc>),
    ) -> Result<(), Refusal> {
        let fill = |context: &mut ViewMut<'_, Qpc>| {
            context
                .set(Qpc::MTU, Mtu::Bytes1024)
                .set(Qpc::LOG_MSG_MAX, 30)
                .set(Qpc::REMOTE_QPN, remote_qpn)
                .set(Qpc::LOG_RRA_MAX, 4)
                .set(Qpc::MIN_RNR_NAK, 12)
                .set(Qpc::NEXT_RCV_PSN, 0x00ff_fffe);
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set_array(AddressPath::RGID_RIP, gid(peer));
        };
        self.modify::<Init2RtrQpIn>(qpn, fill, change)
    }

    pub fn rtr2rts(
        &self,
        qpn: u32,
        change: impl FnOnce(&mut ViewMut<'_, Qpc>),
    ) -> Result<(), Refusal> {
        let fill = |context: &mut ViewMut<'_, Qpc>| {
            context
                .set(Qpc::LOG_SRA_MAX, 4)
                .set(Qpc::RETRY_COUNT, 7)
                .set(Qpc::RNR_RETRY, 6)
                .set(Qpc::NEXT_SEND_PSN, 0x00ff_fffe);
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::ACK_TIMEOUT, 14);
        };
        self.modify::<Rtr2RtsQpIn>(qpn, fill, change)
    }

    pub fn to_err(&self, qpn: u32) -> Result<(), Refusal> {
        self.run::<ToErrQpIn, _>(|request| _ = request.set(ToErrQpIn::QPN, qpn), |_| ())
    }

    pub fn to_rst(&self, qpn: u32) -> Result<(), Refusal> {
        self.run::<ToRstQpIn, _>(|request| _ = request.set(ToRstQpIn::QPN, qpn), |_| ())
    }

    /// Takes a QP from RST to RTS, with `peer` at the other end.
    pub fn connect(&self, qpn: u32, peer: (IpAddr, u32)) -> Result<(), Refusal> {
        self.rst2init(qpn, |_| ())?;
        self.init2rtr(qpn, peer, |_| ())?;
        self.rtr2rts(qpn, |_| ())
    }

    /// Reads from a QP's context.
    pub fn query_qp<T>(
        &self,
        qpn: u32,
        read: impl FnOnce(View<'_, Qpc>) -> T,
    ) -> Result<T, Refusal> {
        self.run::<QueryQpIn, _>(
            |request| _ = request.set(QueryQpIn::QPN, qpn),
            |answer| read(answer.nested(QueryQpOut::QPC)),
        )
    }

    pub fn state(&self, qpn: u32) -> QpState {
        let state = self.query_qp(qpn, |context| context.get(Qpc::STATE));
        state.expect("the QP exists").expect("a known state")
    }

    /// A key with every right over `length` bytes of the memory at `offset`, changed by `change`.
    pub fn create_mkey(
        &self,
        offset: u64,
        length: u64,
        change: impl FnOnce(&mut ViewMut<'_, CreateMkeyIn>),
    ) -> Result<u32, Refusal> {
        self.run::<CreateMkeyIn, _>(
            |request| {
                let start = (self.memory.addr().get() as u64).wrapping_add(offset);
                describe_key(
                    request,
                    (self.umem, offset),
                    (start, length),
                    Rights::ALL,
                    0x42,
                    self.pd,
                );
                change(request);
            },
            |answer| answer.get(CreateMkeyOut::MKEY_INDEX),
        )
    }

    pub fn destroy_mkey(&self, index: u32) -> Result<(), Refusal> {
        self.run::<DestroyMkeyIn, _>(
            |request| _ = request.set(DestroyMkeyIn::MKEY_INDEX, index),
            |_| (),
        )
    }
}

/// The GID of an address.
pub fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
