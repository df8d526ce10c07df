//! What tests of commands and devices share: a device, memory that it may touch, and commands as functions.
#![allow(dead_code, reason = "each test binary takes what it needs")]

mod services;

use std::cell::RefCell;
use std::net::IpAddr;
use std::ptr::NonNull;

use barewire_hca::{CommandSyndrome, Config, Device, Fabric, Mode, UmemAccess, UmemError, WireKind};
use barewire_layouts::command::cq::{Cqc, CqeSize, CreateCqIn, CreateCqOut, DestroyCqIn};
use barewire_layouts::command::eq::{CreateEqIn, CreateEqOut, Eqc};
use barewire_layouts::command::mkey::{ANY_QPN, AccessMode, CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, Mkc};
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut, DeallocPdIn};
use barewire_layouts::command::qp::{
    AddressPath, AtomicMode, CreateQpIn, CreateQpOut, DestroyQpIn, Init2RtrQpIn, ModifyQp, Mtu, QpState, Qpc,
    QueryQpIn, QueryQpOut, Rst2InitQpIn, Rtr2RtsQpIn, ToErrQpIn, ToRstQpIn,
};
use barewire_layouts::command::rmp::{CreateRmpIn, CreateRmpOut, RmpState, Rmpc, Wq};
use barewire_layouts::command::uar::{AllocUarIn, AllocUarOut, DeallocUarIn};
use barewire_layouts::command::{self, CommandStatus, Request};
use barewire_layouts::prm::{Layout, ViewMut};

/// Bytes of a rig's memory.
pub(crate) const MEMORY: usize = 1 << 20;
/// Where a rig's CQ ring, QP rings and the two doorbell records are in its memory. The rest is free.
pub(crate) const CQ_RING: u64 = 0x1_0000;
pub(crate) const QP_RINGS: u64 = 0x2_0000;
pub(crate) const CQ_DOORBELL: u64 = 0x100;
pub(crate) const QP_DOORBELL: u64 = 0x140;

/// The same of an EQ ring, an RMP ring and its doorbell record.
const EQ_RING: u64 = 0x3_0000;
const RMP_RING: u64 = 0x4_0000;
const RMP_DOORBELL: u64 = 0x180;
/// And of an XRC SRQ.
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
pub(crate) type Refusal = (CommandStatus, CommandSyndrome);

/// A device with one umem, one protection domain and one UAR page.
pub(crate) struct Rig {
    pub(crate) device: Device,
    /// The memory that the umem covers.
    pub(crate) memory: NonNull<u8>,
    pub(crate) umem: u32,
    pub(crate) pd: u32,
    pub(crate) uar: u32,
    /// The requests that were made.
    pub(crate) requests: RefCell<Vec<Vec<u8>>>,
    /// Dropped after the device, which may touch it until then.
    pages: Pages,
}

/// [`MEMORY`] bytes between two pages that are nobody's.
struct Pages(NonNull<[Page]>);

impl Pages {
    fn new() -> Self {
        Self(NonNull::from(Box::leak(vec![Page { _bytes: [0; PAGE] }; MEMORY / PAGE + 2].into_boxed_slice())))
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
    /// A stepped one on a fabric of its own.
    pub(crate) fn new() -> Self {
        let wire = WireKind::Fabric(Fabric::new());
        Self::open(Config { mode: Mode::Stepped, wire, ..Config::default() })
    }

    pub(crate) fn open(config: Config) -> Self {
        let device = Device::open(config).expect("an address is free");
        let pages = Pages::new();
        let memory = pages.memory();
        // SAFETY: the pages live until the device is gone, and tests touch them through the pointer only.
        let umem = unsafe { device.register_umem(memory, MEMORY, UmemAccess::LOCAL_WRITE) };
        let umem = umem.expect("the first");
        let mut rig = Self { device, memory, umem, pd: 0, uar: 0, requests: RefCell::default(), pages };
        rig.pd = rig.alloc_pd().expect("the first");
        rig.uar = rig.alloc_uar().expect("the first");
        rig
    }

    /// Stores bytes at an offset of the memory.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let offset = offset as usize;
        assert!(offset <= MEMORY && bytes.len() <= MEMORY - offset);
        // SAFETY: inside the memory, which only raw pointers touch.
        unsafe { self.memory.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Whether nothing was written beside the memory.
    pub(crate) fn guards_intact(&self) -> bool {
        let before = self.pages.0.cast::<u8>();
        // SAFETY: both guard pages are inside the allocation, and nobody writes to them.
        let guards =
            unsafe { [before, self.memory.add(MEMORY)].map(|guard| guard.cast::<[u8; PAGE]>().read()) };
        guards == [[0; PAGE]; 2]
    }

    /// Runs the bytes of a command.
    pub(crate) fn execute(&self, input: &[u8], output: &mut [u8]) {
        // SAFETY: the device is the rig's alone, and memory that tests register with it is accessed through
        // raw pointers only: a command may name any of it.
        unsafe { self.device.execute(input, output) }
    }

    /// Withdraws a registration.
    pub(crate) fn deregister(&self, umem: u32) -> Result<(), UmemError> {
        // SAFETY: as in `execute`.
        unsafe { self.device.deregister_umem(umem) }
    }

    /// Runs a command that `fill` completes; `read` takes the answer.
    pub(crate) fn run<R: Request, T>(
        &self,
        fill: impl FnOnce(&mut ViewMut<'_, R>),
        read: impl FnOnce(barewire_layouts::prm::View<'_, R::Answer>) -> T,
    ) -> Result<T, Refusal> {
        let (mut input, mut output) = (vec![0; R::BYTES], vec![0xff; R::Answer::BYTES]);
        fill(&mut command::request::<R>(&mut input).expect("sized by the layout"));
        self.execute(&input, &mut output);
        self.requests.borrow_mut().push(input);
        command::answer::<R>(&output).map(read).map_err(|error| {
            let syndrome = CommandSyndrome::from_bits(error.syndrome).expect("a syndrome of the device");
            (error.status.expect("a known status"), syndrome)
        })
    }

    pub(crate) fn alloc_pd(&self) -> Result<u32, Refusal> {
        self.run::<AllocPdIn, _>(|_| (), |answer| answer.get(AllocPdOut::PD))
    }

    pub(crate) fn dealloc_pd(&self, pd: u32) -> Result<(), Refusal> {
        self.run::<DeallocPdIn, _>(|request| _ = request.set(DeallocPdIn::PD, pd), |_| ())
    }

    pub(crate) fn alloc_uar(&self) -> Result<u32, Refusal> {
        self.run::<AllocUarIn, _>(|_| (), |answer| answer.get(AllocUarOut::UAR))
    }

    pub(crate) fn dealloc_uar(&self, uar: u32) -> Result<(), Refusal> {
        self.run::<DeallocUarIn, _>(|request| _ = request.set(DeallocUarIn::UAR, uar), |_| ())
    }

    /// An EQ of 16 entries that takes every asynchronous event.
    pub(crate) fn create_eq(&self) -> Result<u32, Refusal> {
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
    pub(crate) fn create_rmp(&self) -> Result<u32, Refusal> {
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

    /// A CQ of 16 entries, with what `change` makes of it.
    pub(crate) fn create_cq(
        &self,
        change: impl FnOnce(&mut ViewMut<'_, CreateCqIn>),
    ) -> Result<u32, Refusal> {
        self.run::<CreateCqIn, _>(
            |request| {
                request.set(CreateCqIn::CQ_UMEM_ID, self.umem).set(CreateCqIn::CQ_UMEM_OFFSET, CQ_RING);
                request
                    .nested(CreateCqIn::CQ_CONTEXT)
                    .set(Cqc::CQE_SZ, CqeSize::Bytes64)
                    .set(Cqc::LOG_CQ_SIZE, 4)
                    .set(Cqc::UAR_PAGE, self.uar)
                    .set(Cqc::DBR_UMEM_ID, self.umem)
                    .set(Cqc::DBR_ADDR, CQ_DOORBELL);
                change(request);
            },
            |answer| answer.get(CreateCqOut::CQN),
        )
    }

    pub(crate) fn destroy_cq(&self, cqn: u32) -> Result<(), Refusal> {
        self.run::<DestroyCqIn, _>(|request| _ = request.set(DestroyCqIn::CQN, cqn), |_| ())
    }

    /// A QP of 16 WQEBBs and 8 receive WQEs of 64 bytes, with what `change` makes of it.
    pub(crate) fn create_qp(
        &self,
        cqn: u32,
        change: impl FnOnce(&mut ViewMut<'_, CreateQpIn>),
    ) -> Result<u32, Refusal> {
        self.run::<CreateQpIn, _>(
            |request| {
                request.set(CreateQpIn::WQ_UMEM_ID, self.umem).set(CreateQpIn::WQ_UMEM_OFFSET, QP_RINGS);
                request
                    .nested(CreateQpIn::QPC)
                    .set(Qpc::PD, self.pd)
                    .set(Qpc::LOG_RQ_SIZE, 3)
                    .set(Qpc::LOG_RQ_STRIDE, 2)
                    .set(Qpc::LOG_SQ_SIZE, 4)
                    .set(Qpc::UAR_PAGE, self.uar)
                    .set(Qpc::USER_INDEX, 0x1234)
                    .set(Qpc::CQN_SND, cqn)
                    .set(Qpc::CQN_RCV, cqn)
                    .set(Qpc::DBR_UMEM_ID, self.umem)
                    .set(Qpc::DBR_ADDR, QP_DOORBELL);
                change(request);
            },
            |answer| answer.get(CreateQpOut::QPN),
        )
    }

    pub(crate) fn destroy_qp(&self, qpn: u32) -> Result<(), Refusal> {
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

    pub(crate) fn rst2init(
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

    pub(crate) fn init2rtr(
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

    pub(crate) fn rtr2rts(
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

    pub(crate) fn to_err(&self, qpn: u32) -> Result<(), Refusal> {
        self.run::<ToErrQpIn, _>(|request| _ = request.set(ToErrQpIn::QPN, qpn), |_| ())
    }

    pub(crate) fn to_rst(&self, qpn: u32) -> Result<(), Refusal> {
        self.run::<ToRstQpIn, _>(|request| _ = request.set(ToRstQpIn::QPN, qpn), |_| ())
    }

    /// Takes a QP from RST to RTS, with `peer` at the other end.
    pub(crate) fn connect(&self, qpn: u32, peer: (IpAddr, u32)) -> Result<(), Refusal> {
        self.rst2init(qpn, |_| ())?;
        self.init2rtr(qpn, peer, |_| ())?;
        self.rtr2rts(qpn, |_| ())
    }

    /// Reads part of a QP's context.
    pub(crate) fn query_qp<T>(
        &self,
        qpn: u32,
        read: impl FnOnce(barewire_layouts::prm::View<'_, Qpc>) -> T,
    ) -> Result<T, Refusal> {
        self.run::<QueryQpIn, _>(
            |request| _ = request.set(QueryQpIn::QPN, qpn),
            |answer| read(answer.nested(QueryQpOut::QPC)),
        )
    }

    pub(crate) fn state(&self, qpn: u32) -> QpState {
        let state = self.query_qp(qpn, |context| context.get(Qpc::STATE));
        state.expect("the QP exists").expect("a known state")
    }

    /// A key with every right over `length` bytes of the memory at `offset`, with what `change` makes of it.
    pub(crate) fn create_mkey(
        &self,
        offset: u64,
        length: u64,
        change: impl FnOnce(&mut ViewMut<'_, CreateMkeyIn>),
    ) -> Result<u32, Refusal> {
        self.run::<CreateMkeyIn, _>(
            |request| {
                request
                    .set(CreateMkeyIn::MKEY_UMEM_ID, self.umem)
                    .set(CreateMkeyIn::MKEY_UMEM_OFFSET, offset);
                request
                    .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
                    .set(Mkc::A, true)
                    .set(Mkc::RW, true)
                    .set(Mkc::RR, true)
                    .set(Mkc::LW, true)
                    .set(Mkc::LR, true)
                    .set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt as u8)
                    .set(Mkc::QPN, ANY_QPN)
                    .set(Mkc::MKEY_7_0, 0x42)
                    .set(Mkc::PD, self.pd)
                    .set(Mkc::START_ADDR, (self.memory.addr().get() as u64).wrapping_add(offset))
                    .set(Mkc::LEN, length);
                change(request);
            },
            |answer| answer.get(CreateMkeyOut::MKEY_INDEX),
        )
    }

    pub(crate) fn destroy_mkey(&self, index: u32) -> Result<(), Refusal> {
        self.run::<DestroyMkeyIn, _>(|request| _ = request.set(DestroyMkeyIn::MKEY_INDEX, index), |_| ())
    }
}

/// The GID of an address.
pub(crate) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
