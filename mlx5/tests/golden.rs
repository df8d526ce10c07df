//! Our bytes against libmlx5's own: ring, doorbell record and BlueFlame register of every RC operation in `golden/libmlx5.jsonl`.
//!
//! Bytes that libmlx5 leaves as they were are `ee` in the file and are not compared. Compared is what `ibv_post_send` wrote on RC; the
//! file's UD sends and `ibv_wr_*` forms (the same bytes again) are not.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use barewire_mlx5::doorbell::Doorbell;
use barewire_mlx5::queue::send::{SendParts, SendQueue};
use barewire_mlx5::{ControlFlags, DataSegment, PostError, RemoteAddressSegment, WqeIndex};
use serde_json::Value;

const UNTOUCHED: u8 = 0xee;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Block([u8; 64]);

/// Ring, register and doorbell record in plain memory.
#[repr(C, align(512))]
struct Memory {
    register: UnsafeCell<[u8; 512]>,
    ring: UnsafeCell<Vec<Block>>,
    record: UnsafeCell<[u32; 2]>,
}

// SAFETY: the test is the only thread that touches it.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

struct Bench {
    memory: Arc<Memory>,
    queue: SendQueue,
}

impl Bench {
    /// A queue like the file's, moved on to counter value `producer`.
    fn new(qpn: u32, blocks: u32, producer: u64) -> Self {
        let memory = Arc::new(Memory {
            register: UnsafeCell::new([UNTOUCHED; 512]),
            ring: UnsafeCell::new(vec![Block([UNTOUCHED; 64]); blocks as usize]),
            record: UnsafeCell::new([0; 2]),
        });
        // SAFETY: nobody else looks at the memory.
        let ring = NonNull::new(unsafe { (*memory.ring.get()).as_mut_ptr() }).unwrap().cast();
        let record: NonNull<u32> = NonNull::new(memory.record.get()).unwrap().cast();
        // SAFETY: the memory has the sizes and alignments asked for, and `keep` holds it.
        let queue = unsafe {
            SendQueue::from_parts(SendParts {
                ring,
                blocks,
                doorbell_record: record.add(1),
                register: NonNull::new(memory.register.get()).unwrap().cast(),
                qpn,
                signal_period: blocks / 8,
                keep: memory.clone(),
            })
        };
        let mut bench = Self { memory, queue };
        for index in 0..producer {
            bench.queue.nop(ControlFlags::empty()).unwrap();
            bench.queue.reap(index as u16);
        }
        // SAFETY: nobody else looks at the memory.
        unsafe {
            (*bench.memory.ring.get()).fill(Block([UNTOUCHED; 64]));
            (*bench.memory.register.get()).fill(UNTOUCHED);
        }
        bench
    }

    fn ring(&self, slot: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: nobody else looks at the memory.
        let ring = unsafe { &*self.memory.ring.get() };
        (0..bytes).map(|at| ring[(slot + at / 64) % ring.len()].0[at % 64]).collect()
    }

    fn record(&self) -> Vec<u8> {
        // SAFETY: as above.
        unsafe { (*self.memory.record.get()).iter().flat_map(|word| word.to_ne_bytes()).collect() }
    }

    /// The half that was written.
    fn register(&self, bytes: usize) -> Vec<u8> {
        // SAFETY: as above.
        let register = unsafe { &*self.memory.register.get() };
        let half = if register[..256].iter().any(|&byte| byte != UNTOUCHED) { 0 } else { 256 };
        register[half..half + bytes].to_vec()
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}

/// Posts the work request `request` as the file describes it.
fn post<D: Doorbell>(queue: &mut SendQueue<D>, request: &Value) -> Result<WqeIndex, PostError> {
    let send_flags = number(request, "send_flags");
    let mut flags = ControlFlags::empty();
    flags.set(ControlFlags::FENCE, send_flags & 1 != 0);
    flags.set(ControlFlags::COMPLETION, send_flags & 2 != 0);
    flags.set(ControlFlags::SOLICITED, send_flags & 4 != 0);
    let inline = send_flags & 8 != 0;

    let sges: Vec<&Value> = request["sge"].as_array().unwrap().iter().collect();
    let payload: Vec<u8> =
        sges.iter().flat_map(|sge| sge["data"].as_str().map(bytes).unwrap_or_default()).collect();
    let local: Vec<DataSegment> = sges
        .iter()
        .map(|sge| {
            DataSegment::new(number(sge, "addr"), number(sge, "length") as u32, number(sge, "lkey") as u32)
        })
        .collect();
    let remote = || RemoteAddressSegment::new(number(request, "remote_addr"), number(request, "rkey") as u32);
    let immediate = || u32::from_str_radix(request["imm_be_hex"].as_str().unwrap(), 16).unwrap();
    match (request["opcode"].as_str().unwrap(), inline) {
        ("RDMA_WRITE", true) => queue.write_inline(&payload, remote(), flags),
        ("RDMA_WRITE", false) if local.len() == 1 => queue.write(local[0], remote(), flags),
        ("RDMA_WRITE", false) => queue.write_gather(&local, remote(), flags),
        ("RDMA_WRITE_WITH_IMM", true) => queue.write_inline_immediate(&payload, remote(), immediate(), flags),
        ("RDMA_WRITE_WITH_IMM", false) => queue.write_immediate(&local, remote(), immediate(), flags),
        ("SEND", true) => queue.send_inline(&payload, flags),
        ("SEND", false) if local.len() == 1 => queue.send(local[0], flags),
        ("SEND_WITH_IMM", true) => queue.send_inline_immediate(&payload, immediate(), flags),
        ("SEND_WITH_IMM", false) => queue.send_immediate(&local, immediate(), flags),
        ("RDMA_READ", _) if local.len() == 1 => queue.read(local[0], remote(), flags),
        ("RDMA_READ", _) => queue.read_scatter(&local, remote(), flags),
        ("ATOMIC_FETCH_AND_ADD", _) => {
            queue.fetch_add(local[0], remote(), number(request, "compare_add"), flags)
        }
        ("ATOMIC_CMP_AND_SWP", _) => queue.compare_swap(
            local[0],
            remote(),
            number(request, "compare_add"),
            number(request, "swap"),
            flags,
        ),
        (opcode, _) => panic!("the file has an operation that this test does not know: {opcode}"),
    }
}

fn check(what: &str, got: &[u8], wanted: &[u8]) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(
            *wanted == UNTOUCHED || got == wanted,
            "{what}: byte {at} is {got:#04x}, libmlx5 has {wanted:#04x}"
        );
    }
}

#[test]
fn every_rc_operation_is_byte_for_byte_libmlx5s() {
    let lines: Vec<Value> = include_str!("golden/libmlx5.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let pair = |ord: u64| lines.iter().find(|line| line["kind"] == "qp" && line["ord"] == ord).unwrap();
    let mut compared = 0;
    for line in lines.iter().filter(|line| line["api"] == "ibv_post_send") {
        let queue_pair = pair(number(line, "qp"));
        if !queue_pair["type"].as_str().unwrap().starts_with("RC") {
            continue;
        }
        let name = line["name"].as_str().unwrap();
        let blocks = number(queue_pair, "sq_wqe_cnt") as u32;
        let mut bench = Bench::new(number(line, "qpn") as u32, blocks, number(line, "pi_before"));
        let requests = line["params"].as_array().unwrap();
        // libmlx5's default does not moderate; here a completion is asked for now and then. Skip what falls on that.
        let (before, after) = (number(line, "pi_before"), number(line, "pi_after"));
        let moderated = (before ^ after) & u64::from(blocks / 8) != 0;
        assert!(
            !moderated || requests.iter().all(|request| number(request, "send_flags") & 2 != 0),
            "{name}: choose another signal period"
        );

        if let [request] = &requests[..] {
            post(&mut bench.queue, request).unwrap();
        } else {
            let mut batch = bench.queue.batch();
            for request in requests {
                post(&mut batch, request).unwrap();
            }
        }
        let wanted = bytes(line["sq_hex"].as_str().unwrap());
        check(name, &bench.ring(number(line, "slot") as usize, wanted.len()), &wanted);
        let mut record = bench.record();
        record[..4].fill(0);
        let mut wanted = bytes(line["dbrec"].as_str().unwrap());
        wanted[..4].fill(0);
        check(&format!("{name}, doorbell record"), &record, &wanted);
        let wanted = bytes(line["bf_hex"].as_str().unwrap());
        check(&format!("{name}, BlueFlame"), &bench.register(wanted.len()), &wanted);
        compared += 1;
    }
    assert_eq!(compared, 30, "operations compared");
}

/// The short cut for 8 bytes and the general path give the same WQE.
#[test]
fn eight_bytes_take_the_same_form_by_either_path() {
    let remote = RemoteAddressSegment::new(0x1122_3344_5566, 0x778899);
    let payload = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut general = Bench::new(72, 64, 9);
    general.queue.write_inline(&payload, remote, ControlFlags::COMPLETION).unwrap();
    let mut short = Bench::new(72, 64, 9);
    short.queue.write_inline_8(payload, remote, ControlFlags::COMPLETION).unwrap();
    assert_eq!(general.ring(9, 48), short.ring(9, 48));
    assert_eq!(general.register(48), short.register(48));
}

#[test]
fn halves_of_the_register_take_turns() {
    let mut bench = Bench::new(72, 64, 0);
    bench.queue.nop(ControlFlags::COMPLETION).unwrap();
    bench.queue.nop(ControlFlags::COMPLETION).unwrap();
    // SAFETY: nobody else looks at the memory.
    let register = unsafe { &*bench.memory.register.get() };
    assert_eq!(register[..16], bytes("00000000000048010000000800000000"));
    assert_eq!(register[256..272], bytes("00000100000048010000000800000000"));
}

#[test]
fn room_is_counted_exactly() {
    let mut bench = Bench::new(72, 16, 0);
    let queue = &mut bench.queue;
    let long = [7; 220];
    let remote = RemoteAddressSegment::new(0, 0);
    for _ in 0..4 {
        queue.write_inline(&long, remote, ControlFlags::COMPLETION).unwrap();
    }
    assert_eq!(queue.room(), 0);
    assert_eq!(queue.nop(ControlFlags::empty()), Err(PostError::QueueFull));
    assert!(!queue.is_idle());
    // The second WQE frees the first whole and its own first block; the rest of it comes back later.
    queue.reap(4);
    assert!(queue.is_done(WqeIndex(0)) && queue.is_done(WqeIndex(4)) && !queue.is_done(WqeIndex(8)));
    assert_eq!(queue.room(), 5);
    queue.reap(12);
    assert!(queue.is_idle());
    assert_eq!(queue.room(), 16);
    assert_eq!(queue.write_inline(&[0; 221], remote, ControlFlags::empty()), Err(PostError::TooLong));
    assert_eq!(queue.send_inline(&[0; 237], ControlFlags::empty()), Err(PostError::TooLong));
    assert_eq!(
        queue.write_gather(&[DataSegment::new(0, 1, 0); 15], remote, ControlFlags::empty()),
        Err(PostError::TooLong)
    );
    assert_eq!(queue.room(), 16, "a refused post takes no room");
    queue.send_inline(&[0; 236], ControlFlags::empty()).unwrap();
    queue.write_gather(&[DataSegment::new(0, 1, 0); 14], remote, ControlFlags::empty()).unwrap();
    queue.send_gather(&[DataSegment::new(0, 1, 0); 15], ControlFlags::empty()).unwrap();
}

#[test]
fn unsignalled_posts_are_moderated() {
    let mut bench = Bench::new(72, 16, 0);
    let queue = &mut bench.queue;
    assert!(queue.last_is_signaled(), "nothing to wait for");
    let mut signaled = Vec::new();
    for index in 0..8 {
        queue.nop(ControlFlags::empty()).unwrap();
        if queue.last_is_signaled() {
            signaled.push(index);
        }
    }
    assert_eq!(signaled, [1, 3, 5, 7], "with a period of two blocks");
}
