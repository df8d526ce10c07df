//! A driver for tests: it creates objects by PRM commands and writes WQEs byte by byte, through the
//! device's public interface only.
//!
//! [`Node`], [`Cq`] and [`Qp`] expect every command to succeed and own their rings; [`rig::Rig`]
//! returns refusals.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(missing_docs, missing_debug_implementations, reason = "test code")]

pub mod dynamic;
pub mod events;
pub mod foreign;
mod memory;
mod objects;
pub mod paging;
pub mod pcap;
mod queue;
pub mod rig;
pub mod srq;
pub mod strides;
pub mod tags;
mod wqe;
pub mod xrc;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use barewire_hca::{
    Config, Device, Fabric, Faults, Mode, ReservedBits, Strict, UarPage, UmemAccess, WireKind,
};
use barewire_layouts::command::mkey::{CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, key};
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
use barewire_layouts::command::qp::{Mtu, ServiceType};
use barewire_layouts::command::uar::{AllocUarIn, AllocUarOut};
use barewire_layouts::command::{CommandError, Request, answer, request};
use barewire_layouts::prm::{Layout, ViewMut};

pub use memory::{Memory, Region, Rights};
pub use queue::{Completion, Connection, Cq, LOG_CQ, Qp};
pub use wqe::Wqe;

/// A device with one protection domain and one UAR page.
#[derive(Clone)]
pub struct Node {
    pub device: Device,
    pub pd: u32,
    pub uar: u32,
    pub page: Arc<UarPage>,
}

/// Executes command `R`, filled in by `fill`, and returns the bytes of its output.
pub fn command<R: Request>(
    device: &Device,
    fill: impl FnOnce(&mut ViewMut<'_, R>),
) -> Result<Vec<u8>, CommandError> {
    run::<R>(device, &input::<R>(fill))
}

/// The bytes of command `R`, filled in by `fill`.
pub fn input<R: Request>(fill: impl FnOnce(&mut ViewMut<'_, R>)) -> Vec<u8> {
    let mut input = vec![0; R::BYTES];
    fill(&mut request::<R>(&mut input).expect("as long as the request"));
    input
}

/// Executes the bytes of command `R`, and returns the bytes of its output.
pub fn run<R: Request>(device: &Device, input: &[u8]) -> Result<Vec<u8>, CommandError> {
    let mut output = vec![0xff; <R::Answer as Layout>::BYTES];
    execute(device, input, &mut output);
    answer::<R>(&output)?;
    Ok(output)
}

/// Executes the bytes of a command.
pub fn execute(device: &Device, input: &[u8], output: &mut [u8]) {
    // SAFETY: a command may name any memory that is registered with the device, and a test accesses
    // what it registers through raw pointers and atomics only.
    unsafe { device.execute(input, output) }
}

impl Node {
    pub fn open(config: Config) -> Self {
        let device = Device::open(config).expect("a device");
        let pd = command::<AllocPdIn>(&device, |_| ()).unwrap();
        let pd = answer::<AllocPdIn>(&pd).unwrap().get(AllocPdOut::PD);
        let uar = command::<AllocUarIn>(&device, |_| ()).unwrap();
        let uar = answer::<AllocUarIn>(&uar).unwrap().get(AllocUarOut::UAR);
        let page = device.uar_page(uar).expect("a page that was just allocated");
        Self { device, pd, uar, page }
    }

    /// A stepped device that panics at a driver's mistake.
    pub fn stepped(fabric: &Fabric, faults: Faults) -> Self {
        Self::open(
            Config::default()
                .mode(Mode::Stepped)
                .wire(WireKind::Fabric(fabric.clone()))
                .faults(faults)
                .strict(Strict::Panic)
                .reserved_bits(ReservedBits::Refuse),
        )
    }

    /// A device with a thread and a UDP socket.
    pub fn threaded(faults: Faults) -> Self {
        Self::open(
            Config::default()
                .mode(Mode::Thread)
                .wire(WireKind::Udp)
                .faults(faults)
                .strict(Strict::Panic)
                .reserved_bits(ReservedBits::Refuse),
        )
    }

    /// Stores eight bytes, as memory holds them, to the UAR page.
    pub fn store(&self, offset: usize, word: u64) {
        assert!(offset.is_multiple_of(8) && offset < 4096);
        fence(Ordering::SeqCst);
        // SAFETY: an aligned word inside the UAR page, which `self` holds.
        let register =
            unsafe { AtomicU64::from_ptr(self.page.as_ptr().add(offset).as_ptr().cast()) };
        register.store(word, Ordering::Release);
    }

    /// Registered memory and a key with all rights.
    pub fn region(&self, length: usize) -> Region {
        let memory = Memory::register(&self.device, length, UmemAccess::all());
        let key = self.key(&memory, 0, length, Rights::ALL);
        Region { memory, key }
    }

    /// A key for a part of `memory`.
    pub fn key(&self, memory: &Memory, offset: usize, length: usize, rights: Rights) -> u32 {
        self.key_over((memory.umem(), offset), memory.address() + offset as u64, length, rights)
    }

    /// A key for a part of a umem, whose addresses begin at `start`.
    pub fn key_over(
        &self,
        (umem, offset): (u32, usize),
        start: u64,
        length: usize,
        rights: Rights,
    ) -> u32 {
        const VARIANT: u8 = 0x5a;
        let output = command::<CreateMkeyIn>(&self.device, |create| {
            let range = (start, length as u64);
            objects::describe_key(create, (umem, offset as u64), range, rights, VARIANT, self.pd);
        })
        .unwrap();
        key(answer::<CreateMkeyIn>(&output).unwrap().get(CreateMkeyOut::MKEY_INDEX), VARIANT)
    }

    pub fn destroy_key(&self, key: u32) {
        command::<DestroyMkeyIn>(&self.device, |destroy| {
            destroy.set(DestroyMkeyIn::MKEY_INDEX, key >> 8);
        })
        .unwrap();
    }
}

/// Two devices on one fabric, a queue pair on each, connected.
pub struct Pair {
    pub a: Node,
    pub b: Node,
    pub qa: Qp,
    pub qb: Qp,
}

impl Pair {
    pub fn new(connection: &Connection) -> Self {
        Self::with_faults(connection, Faults::default(), Faults::default())
    }

    pub fn with_faults(connection: &Connection, a: Faults, b: Faults) -> Self {
        let fabric = Fabric::new();
        Self::over(Node::stepped(&fabric, a), Node::stepped(&fabric, b), connection)
    }

    pub fn over(a: Node, b: Node, connection: &Connection) -> Self {
        let (qa, qb) = (Qp::new(&a), Qp::new(&b));
        Self::of(a, b, (qa, qb), connection)
    }

    /// Two devices and queue pairs of another transport service.
    pub fn with_service(service: ServiceType, a: Node, b: Node, connection: &Connection) -> Self {
        let qps = (Qp::with_service(&a, service), Qp::with_service(&b, service));
        Self::of(a, b, qps, connection)
    }

    /// Connects two new queue pairs.
    pub fn of(a: Node, b: Node, (mut qa, mut qb): (Qp, Qp), connection: &Connection) -> Self {
        qa.connect(&b, qb.number, connection, (connection.psn, connection.psn ^ 0x55));
        qb.connect(&a, qa.number, connection, (connection.psn ^ 0x55, connection.psn));
        Self { a, b, qa, qb }
    }

    /// Steps both devices until both are idle.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !(self.a.device.step() | self.b.device.step()) {
                return;
            }
        }
        panic!(
            "the devices stay busy: {:?} {:?}",
            self.a.device.counters(),
            self.b.device.counters()
        );
    }

    /// Steps both devices `passes` times.
    pub fn step(&mut self, passes: usize) {
        for _ in 0..passes {
            self.a.device.step();
            self.b.device.step();
        }
    }
}

/// Pseudo-random bytes that depend on `salt`.
pub fn pattern(length: usize, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(salt).fill(&mut bytes);
    bytes
}

pub const MTUS: [(Mtu, usize); 2] = [(Mtu::Bytes256, 256), (Mtu::Bytes4096, 4096)];
