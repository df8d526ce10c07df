//! Ten thousand queue pairs on one UAR page, and a hundred thousand memory keys.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use crate::alone;
use crate::support::{Cq, Memory, Node, Rights, Wqe, command};
use barewire_hca::{Fabric, Faults, UmemAccess};
use barewire_layouts::command::answer;
use barewire_layouts::command::qp::{
    AddressPath, AtomicMode, CreateQpIn, CreateQpOut, DestroyQpIn, Init2RtrQpIn, ModifyQp, Mtu,
    PathMigration, Qpc, ReceiveQueueType, Rst2InitQpIn, Rtr2RtsQpIn, ServiceType,
};
use barewire_layouts::doorbell::{BLUEFLAME_HALF, BLUEFLAME_OFFSET};
use barewire_layouts::wqe::Opcode;

#[path = "../../../tests/support/allocator.rs"]
mod allocator;

const QPS: usize = 10_000;
const MKEYS: usize = 100_000;
const LOG_SQ: u8 = 2;
/// A send ring and a doorbell record.
const SLOT: usize = (64 << LOG_SQ) + 64;

/// Queue pairs that share memory and completion queue.
struct Many {
    node: Node,
    cq: Cq,
    memory: Memory,
    numbers: Vec<u32>,
    posted: Vec<u16>,
}

impl Many {
    fn new(node: &Node, count: usize) -> Self {
        let cq = Cq::new(node, 15);
        let memory = Memory::register(&node.device, count * SLOT, UmemAccess::LOCAL_WRITE);
        let numbers = (0..count).map(|at| create(node, &cq, &memory, at * SLOT)).collect();
        Self { node: node.clone(), cq, memory, numbers, posted: vec![0; count] }
    }

    /// Posts a write of eight bytes by a plain doorbell in register half `half`.
    fn post(&mut self, at: usize, half: usize, wqe: &Wqe) {
        let index = self.posted[at];
        let bytes = wqe.bytes(index, self.numbers[at]);
        assert!(bytes.len() <= 64);
        self.memory.write(at * SLOT + usize::from(index % (1 << LOG_SQ)) * 64, &bytes);
        self.posted[at] = index.wrapping_add(1);
        self.memory.store_be32(at * SLOT + (64 << LOG_SQ) + 4, u32::from(self.posted[at]));
        fence(Ordering::SeqCst);
        let register = BLUEFLAME_OFFSET + half * BLUEFLAME_HALF;
        // SAFETY: an aligned word inside the UAR page, which `node` holds.
        let word =
            unsafe { AtomicU64::from_ptr(self.node.page.as_ptr().add(register).as_ptr().cast()) };
        word.store(u64::from_ne_bytes(bytes[..8].try_into().unwrap()), Ordering::Release);
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        for &number in &self.numbers {
            let destroyed = command::<DestroyQpIn>(&self.node.device, |destroy| {
                destroy.set(DestroyQpIn::QPN, number);
            });
            assert!(destroyed.is_ok() || std::thread::panicking());
        }
    }
}

/// A queue pair that is connected to itself.
fn create(node: &Node, cq: &Cq, memory: &Memory, offset: usize) -> u32 {
    let output = command::<CreateQpIn>(&node.device, |create| {
        create
            .set(CreateQpIn::WQ_UMEM_VALID, true)
            .set(CreateQpIn::WQ_UMEM_ID, memory.umem())
            .set(CreateQpIn::WQ_UMEM_OFFSET, offset as u64);
        create
            .nested(CreateQpIn::QPC)
            .set(Qpc::ST, ServiceType::Rc)
            .set(Qpc::PM_STATE, PathMigration::Migrated)
            .set(Qpc::PD, node.pd)
            .set(Qpc::UAR_PAGE, node.uar)
            .set(Qpc::RQ_TYPE, ReceiveQueueType::Zero)
            .set(Qpc::LOG_SQ_SIZE, LOG_SQ)
            .set(Qpc::CQN_SND, cq.number)
            .set(Qpc::CQN_RCV, cq.number)
            .set(Qpc::DBR_UMEM_VALID, true)
            .set(Qpc::DBR_UMEM_ID, memory.umem())
            .set(Qpc::DBR_ADDR, (offset + (64 << LOG_SQ)) as u64);
    })
    .unwrap();
    let number = answer::<CreateQpIn>(&output).unwrap().get(CreateQpOut::QPN);
    command::<Rst2InitQpIn>(&node.device, |modify| {
        modify.set(Rst2InitQpIn::QPN, number);
        let mut context = modify.nested(Rst2InitQpIn::QPC);
        context.set(Qpc::RWE, true).set(Qpc::ATOMIC_MODE, AtomicMode::None);
        context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::VHCA_PORT_NUM, 1);
    })
    .unwrap();
    command::<Init2RtrQpIn>(&node.device, |modify| {
        modify.set(Init2RtrQpIn::QPN, number);
        let mut context = modify.nested(Init2RtrQpIn::QPC);
        context
            .set(Qpc::MTU, Mtu::Bytes1024)
            .set(Qpc::LOG_MSG_MAX, 20)
            .set(Qpc::REMOTE_QPN, number);
        context
            .nested(Qpc::PRIMARY_ADDRESS_PATH)
            .set_array(AddressPath::RGID_RIP, node.device.gid());
    })
    .unwrap();
    command::<Rtr2RtsQpIn>(&node.device, |modify| {
        modify.set(Rtr2RtsQpIn::QPN, number);
        modify.nested(Rtr2RtsQpIn::QPC).set(Qpc::RETRY_COUNT, 7);
    })
    .unwrap();
    number
}

/// The least time from a doorbell to its completion, of many.
fn least(many: &mut Many, wqe: &Wqe) -> Duration {
    (0..300)
        .map(|round| {
            let at = round * 7919 % many.numbers.len();
            many.post(at, round % 4, wqe);
            let start = Instant::now();
            while many.cq.poll().is_none() {
                many.node.device.step();
            }
            start.elapsed()
        })
        .min()
        .expect("300 rounds")
}

/// Returns the bytes that are held beyond `before`. The devices are stepped by the test's own
/// thread.
fn held_since(before: isize) -> usize {
    usize::try_from(allocator::held() - before).unwrap_or(0)
}

#[test]
fn ten_thousand_queue_pairs_ring_through_one_page() {
    let _alone = alone();
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let target = node.region(8);
    let before = allocator::held();
    let mut many = Many::new(&node, QPS);
    // The rings and doorbell records are the test's own.
    let each = held_since(before).saturating_sub(QPS * SLOT) / QPS;
    println!("a queue pair takes {each} bytes");
    assert!(each < 3072, "{each} bytes for each queue pair, README.md says 3 KiB");
    let wqe = |value: u64| {
        Wqe::new(Opcode::RdmaWrite)
            .remote(target.address(), target.key)
            .inline(&value.to_ne_bytes())
    };
    while node.device.step() {}

    // One doorbell finds its queue pair at once, wherever that is among the others.
    let mut passes = 0;
    let start = Instant::now();
    for round in 0..200 {
        let at = round * 7919 % QPS;
        many.post(at, round % 4, &wqe(round as u64));
        let mut this = 0;
        while many.cq.poll().is_none() {
            node.device.step();
            this += 1;
            assert!(this < 20, "{this} passes for one doorbell");
        }
        passes += this;
        assert_eq!(target.memory.read(0, 8), (round as u64).to_ne_bytes());
    }
    println!("200 doorbells among {QPS} queue pairs: {passes} passes, {:?}", start.elapsed());

    // Doorbells that overwrote each other before anyone looked: all in one register.
    let start = Instant::now();
    for at in 0..QPS {
        many.post(at, 0, &wqe(at as u64));
    }
    let (mut done, deadline) = (0, Instant::now() + Duration::from_mins(1));
    while done < QPS {
        node.device.step();
        done += many.cq.drain().len();
        assert!(Instant::now() < deadline, "{done} of {QPS} completions");
    }
    println!("{QPS} writes, one doorbell seen: {:?}", start.elapsed());
    assert!(
        !std::iter::repeat_with(|| node.device.step()).take(100_000).all(|busy| busy),
        "it comes to rest"
    );
    assert_eq!(node.device.counters().findings, 0);
}

#[test]
fn a_doorbell_takes_as_long_among_many_as_among_few() {
    let _alone = alone();
    let [few, lot] = [100, QPS].map(|count| {
        let node = Node::stepped(&Fabric::new(), Faults::default());
        let target = node.region(8);
        let wqe = Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key).inline(&[1; 8]);
        let mut many = Many::new(&node, count);
        while node.device.step() {}
        least(&mut many, &wqe)
    });
    println!("a doorbell among 100 queue pairs: {few:?}, among {QPS}: {lot:?}");
    // A hundred times as many: a check of each would show.
    assert!(lot < few * 10 + Duration::from_micros(20), "{lot:?} among {QPS}, {few:?} among 100");
}

#[test]
fn a_hundred_thousand_keys_are_found() {
    let _alone = alone();
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let memory = Memory::register(&node.device, 4096, UmemAccess::all());
    let (start, before) = (Instant::now(), allocator::held());
    let mut keys: VecDeque<u32> =
        (0..MKEYS).map(|at| node.key(&memory, at % 4096, 1, Rights::ALL)).collect();
    let each = held_since(before) / MKEYS;
    println!("{MKEYS} memory keys in {:?}, {each} bytes each", start.elapsed());
    assert!(each < 384, "{each} bytes for each memory key, README.md says 300");
    assert_eq!(node.device.objects().memory_keys, MKEYS);
    let mut many = Many::new(&node, 1);
    for at in [0, 1, 50_000, MKEYS - 1] {
        let address = memory.address() + at as u64 % 4096;
        many.post(
            0,
            0,
            &Wqe::new(Opcode::RdmaWrite).remote(address, keys[at]).inline(&[at as u8 | 1]),
        );
        while node.device.step() {}
        assert!(many.cq.poll().unwrap().is_ok());
        assert_eq!(memory.read(at % 4096, 1), [at as u8 | 1]);
    }
    while let Some(key) = keys.pop_front() {
        node.destroy_key(key);
    }
    assert!(start.elapsed() < Duration::from_mins(1));
}
