//! Arbitrary calls: every method with plausible and random arguments. None may panic or hang, and
//! after the context is closed the device holds no more objects than before.

use std::sync::{Arc, Mutex, OnceLock};

use proptest::prelude::*;
use proptest::sample::select;

use crate::adapter::Adapter;
use crate::attributes::Attributes;
use crate::config::{Link, Settings};
use crate::context::Context;
use crate::errno::Errno;
use crate::object::Object;

/// The form of a method's attribute.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// A handle or descriptor, as input or output.
    Handle,
    /// A number.
    Number,
    /// A command of the write() ABI.
    Command,
    /// Input of this many bytes.
    In(u16),
    /// Output room of this many bytes.
    Out(u16),
}

use Shape::{Command, Handle, In, Number, Out};

/// Object, method and the attributes that the method supports.
type Method = (u16, u16, &'static [(u16, Shape)]);

const METHODS: &[Method] = &[
    (0, 0, &[(2, Command), (0, In(112)), (1, Out(128)), (0x1000, In(16)), (0x1001, Out(104))]),
    (0, 1, &[(0, Number), (1, Out(4)), (2, Out(64))]),
    (0, 2, &[(0, Number), (1, Out(48))]),
    (0, 3, &[(0, Out(4)), (1, Out(8)), (0x1000, In(32)), (0x1001, Out(72))]),
    (0, 4, &[(0, Out(4)), (1, Out(8)), (0x1000, Out(72))]),
    (0, 5, &[(0, Number), (1, Number), (2, Out(256)), (3, Out(8))]),
    (0, 6, &[(0, Number), (1, Number), (2, Number), (3, Out(32))]),
    (1, 0, &[(0, Handle)]),
    (
        3,
        0,
        &[
            (0, Handle),
            (1, Number),
            (2, Number),
            (4, Number),
            (6, Out(4)),
            (0x1000, In(32)),
            (0x1001, Out(8)),
        ],
    ),
    (3, 1, &[(0, Handle), (1, Out(8))]),
    (
        4,
        0,
        &[
            (0, Handle),
            (2, Handle),
            (4, Handle),
            (5, Handle),
            (7, Number),
            (8, In(20)),
            (9, Number),
            (13, Out(20)),
            (14, Out(4)),
            (0x1000, In(56)),
            (0x1001, Out(40)),
        ],
    ),
    (4, 1, &[(0, Handle), (1, Out(4))]),
    (
        5,
        0,
        &[
            (0, Handle),
            (1, Handle),
            (2, Handle),
            (3, Handle),
            (4, Number),
            (5, Number),
            (6, Number),
            (9, Number),
            (11, Out(4)),
            (12, Out(4)),
            (13, Out(4)),
            (0x1000, In(32)),
            (0x1001, Out(8)),
        ],
    ),
    (5, 1, &[(0, Handle), (1, Out(4))]),
    (6, 0, &[(0, Handle)]),
    (7, 1, &[(0, Handle)]),
    (7, 3, &[(0, Handle), (1, Out(4)), (2, Out(4)), (3, Out(8)), (4, Out(8))]),
    (8, 0, &[(0, Handle)]),
    (10, 0, &[(0, Handle)]),
    (16, 0, &[(0, Handle)]),
    (0x1000, 0x1000, &[(0x1000, In(64)), (0x1001, Out(64))]),
    (0x1000, 0x1002, &[(0x1000, Number), (0x1001, Out(4))]),
    (0x1000, 0x1003, &[(0x1000, Handle), (0x1001, Handle), (0x1002, In(4)), (0x1004, Number)]),
    (0x1001, 0x1000, &[(0x1000, Handle), (0x1001, In(272)), (0x1002, Out(16))]),
    (0x1001, 0x1001, &[(0x1000, Handle)]),
    (0x1001, 0x1002, &[(0x1000, Handle), (0x1001, In(272)), (0x1002, Out(16))]),
    (0x1001, 0x1003, &[(0x1000, Handle), (0x1001, In(16)), (0x1002, Out(272))]),
    (
        0x1002,
        0x1000,
        &[(0x1000, Handle), (0x1001, Number), (0x1002, Number), (0x1003, Number), (0x1004, Out(4))],
    ),
    (0x1002, 0x1001, &[(0x1000, Handle)]),
    (0x1005, 0x1000, &[(0x1000, Handle), (0x1001, Number)]),
    (
        0x1008,
        0x1000,
        &[(0x1000, Handle), (0x1001, Number), (0x1002, Out(8)), (0x1003, Out(4)), (0x1004, Out(4))],
    ),
    (0x1008, 0x1001, &[(0x1000, Handle)]),
];

/// Commands of the write() ABI, and some invalid ones.
const COMMANDS: [u64; 19] = [
    1,
    3,
    5,
    9,
    11,
    14,
    17,
    19,
    25,
    26,
    30,
    31,
    33,
    34,
    37,
    40,
    0x8000_0001,
    0x8000_001a,
    0x8000_0039,
];

/// Memory that the test's programs register.
fn arena() -> u64 {
    static ARENA: OnceLock<u64> = OnceLock::new();
    *ARENA.get_or_init(|| {
        let memory = Vec::leak(vec![0_u8; (1 << 18) + 4096]).as_ptr();
        memory as u64 + memory.align_offset(4096) as u64
    })
}

/// A device and one of its UAR pages.
fn adapter() -> &'static (Arc<Adapter>, u32) {
    static ADAPTER: OnceLock<(Arc<Adapter>, u32)> = OnceLock::new();
    ADAPTER.get_or_init(|| {
        let settings = Settings {
            faults: false,
            devices: 1,
            link: Link::Roce,
            devx: true,
            yields: true,
            memlock: false,
            ports: 1,
        };
        let adapter = Adapter::open(0, settings).expect("an address of 127.0.0.0/8 is free");
        let (uar, _) = adapter.take_uar().expect("there are many");
        (adapter, uar)
    })
}

/// Typical and extreme numbers.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..8_u64,
        2 => select(vec![16, 64, 128, 256, 4096]),
        2 => (0..500_u64).prop_map(|at| arena() + at * 64),
        1 => any::<u64>(),
        1 => Just(u64::MAX),
    ]
}

/// An attribute: number, length and data; data longer than 8 bytes is in separate memory.
#[derive(Clone, Debug)]
struct Given {
    id: u16,
    length: u16,
    data: u64,
    memory: Option<Vec<u64>>,
}

fn given(id: u16, shape: Shape) -> BoxedStrategy<Given> {
    let right = match shape {
        Handle => {
            number().prop_map(move |data| Given { id, length: 0, data, memory: None }).boxed()
        }
        Number => {
            number().prop_map(move |data| Given { id, length: 8, data, memory: None }).boxed()
        }
        Command => select(COMMANDS.to_vec())
            .prop_map(move |data| Given { id, length: 8, data, memory: None })
            .boxed(),
        In(length) | Out(length) => prop::collection::vec(word(), usize::from(length).div_ceil(8))
            .prop_map(move |words| {
                let inline = length <= 8 && matches!(shape, In(_));
                Given { id, length, data: words[0], memory: (!inline).then_some(words) }
            })
            .boxed(),
    };
    // Sometimes the length is wrong or the address is invalid.
    let wrong = (0..300_u16, number()).prop_map(move |(length, data)| Given {
        id,
        length,
        data,
        memory: None,
    });
    prop_oneof![12 => right, 1 => wrong].boxed()
}

/// Eight bytes of a structure: one number or two.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![number(), (0..129_u64, 0..129_u64).prop_map(|(a, b)| a << 32 | b)]
}

#[derive(Clone, Debug)]
struct Call {
    object: u16,
    method: u16,
    list: Vec<Given>,
}

fn call() -> impl Strategy<Value = Call> {
    select(METHODS.to_vec()).prop_flat_map(|(object, method, shapes)| {
        let list: Vec<_> = shapes.iter().map(|&(id, shape)| given(id, shape)).collect();
        // Sometimes an attribute is missing.
        (list, 0..40_usize).prop_map(move |(mut list, gone)| {
            if gone < list.len() {
                list.remove(gone);
            }
            Call { object, method, list }
        })
    })
}

/// An attribute of a valid call.
fn handle(id: u16, data: u64) -> Given {
    Given { id, length: 0, data, memory: None }
}

fn given_number(id: u16, data: u64) -> Given {
    Given { id, length: 8, data, memory: None }
}

fn input(id: u16, length: u16, words: &[u64]) -> Given {
    Given { id, length, data: words[0], memory: (length > 8).then(|| words.to_vec()) }
}

fn output(id: u16, length: u16) -> Given {
    Given { id, length, data: 0, memory: Some(vec![0; usize::from(length).div_ceil(8)]) }
}

/// An output whose memory cannot be written.
fn nowhere(id: u16, length: u16) -> Given {
    Given { id, length, data: 8, memory: None }
}

/// A command of the write() ABI.
fn legacy(command: u64, request: &[u64]) -> Call {
    let length = 8 * request.len() as u16;
    let list = vec![
        given_number(2, command),
        input(0, length, request),
        output(1, 128),
        output(0x1001, 104),
    ];
    Call { object: 0, method: 0, list }
}

/// Objects that most programs have, at the first handles: a protection domain, memory region,
/// completion queue, shared receive queue, queue pair, XRC domain, memory window, DEVX object and
/// UMEM.
fn beginning() -> Vec<Call> {
    /// `MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX`, `MLX5_QP_FLAG_UAR_PAGE_INDEX`.
    const CQ_FLAGS: u64 = 2 << 48;
    const QP_FLAGS: u64 = 0x400 << 32;
    const READ_AND_WRITE: u64 = 7 << 32;
    let uar = u64::from(adapter().1);
    let (arena, records) = (arena(), arena() + 0x4000);
    let made = |object, method, list| Call { object, method, list };
    let cap = [4 << 32 | 4, 1 << 32 | 1, 0];
    vec![
        legacy(3, &[0]),
        legacy(9, &[0, arena, 4096, arena, READ_AND_WRITE]),
        made(
            3,
            0,
            vec![
                handle(0, 0),
                given_number(1, 15),
                given_number(2, 1),
                given_number(4, 0),
                output(6, 4),
                input(0x1000, 32, &[arena, records, CQ_FLAGS | 64, uar]),
                output(0x1001, 8),
            ],
        ),
        made(
            5,
            0,
            vec![
                handle(0, 0),
                handle(1, 0),
                given_number(4, 1),
                given_number(5, 15),
                given_number(6, 1),
                given_number(9, 0),
                input(0x1000, 32, &[arena + 0x1000, records + 64, 0, 0]),
                output(0x1001, 8),
            ],
        ),
        made(
            4,
            0,
            vec![
                handle(0, 0),
                handle(2, 0),
                handle(4, 2),
                handle(5, 2),
                given_number(7, 1),
                input(8, 20, &cap),
                given_number(9, 2),
                output(13, 20),
                output(14, 4),
                input(
                    0x1000,
                    56,
                    &[
                        arena + 0x2000,
                        records + 128,
                        4 << 32 | 16,
                        QP_FLAGS | 4,
                        uar << 32 | 3,
                        0,
                        0,
                    ],
                ),
                output(0x1001, 40),
            ],
        ),
        legacy(37, &[0, 0xffff_ffff]),
        legacy(14, &[0, 2 << 32]),
        // ALLOC_PD.
        made(
            0x1001,
            0x1000,
            vec![handle(0x1000, 0), input(0x1001, 16, &[8, 0]), output(0x1002, 16)],
        ),
        made(
            0x1002,
            0x1000,
            vec![
                handle(0x1000, 0),
                given_number(0x1001, arena),
                given_number(0x1002, 8192),
                given_number(0x1003, 1),
                output(0x1004, 4),
            ],
        ),
    ]
}

/// Valid calls that programs make next, in this order or not at all.
fn usual() -> Vec<Call> {
    let made = |object, method, list| Call { object, method, list };
    // ib_uverbs_modify_qp: handle and mask at word 8, states at word 12.
    let modify = |mask: u64, state: u64| {
        let mut words = [0; 14];
        (words[8], words[12], words[13]) = (mask << 32 | 4, state, 1);
        legacy(26, &words)
    };
    let mut calls = vec![
        modify(0x39, 1),
        legacy(25, &[0, u64::from(u32::MAX) << 32 | 4]),
        modify(1, 6),
        modify(1, 0),
        legacy(33, &[2 << 32 | 3, 4 << 32]),
        legacy(34, &[0, 3]),
        legacy(0x8000_0039, &[1 << 32 | 2, 1 << 16 | 1]),
        legacy(11, &[0, 4 << 32 | 1, 0, 0, 0, 1 << 32]),
        made(0x1001, 0x1001, vec![handle(0x1000, 7)]),
        made(0x1002, 0x1001, vec![handle(0x1000, 8)]),
    ];
    calls.extend([(4, 4), (5, 3), (3, 2), (7, 1), (8, 6), (10, 5), (1, 0)].map(|(object, at)| {
        made(
            object,
            if object == 7 { 1 } else { u16::from(matches!(object, 3..=5)) },
            vec![handle(0, at)],
        )
    }));
    calls
}

/// A valid call with a few words changed.
fn nearly_right() -> impl Strategy<Value = Call> {
    let calls = [beginning(), usual(), usual()].concat();
    let changes = prop::collection::vec((0..12_usize, 0..14_usize, number()), 0..3);
    (select(calls), changes).prop_map(|(mut call, changes)| {
        for (at, word, value) in changes {
            let Some(given) = call.list.get_mut(at) else { continue };
            match &mut given.memory {
                Some(words) => {
                    let count = words.len();
                    words[word % count] = value;
                }
                None => given.data = value,
            }
        }
        call
    })
}

/// Executes a call as libibverbs would; `None` if the header itself is refused.
fn carry_out(context: &Context, mut call: Call) -> Option<Result<(), Errno>> {
    let length = (24 + 16 * call.list.len()) as u64;
    let head = length | u64::from(call.object) << 16 | u64::from(call.method) << 32;
    let mut words = vec![head | (call.list.len() as u64) << 48, 0, 1];
    for given in &mut call.list {
        if let Some(memory) = &mut given.memory {
            given.data = memory.as_mut_ptr() as u64;
        }
        words.extend([u64::from(given.id) | u64::from(given.length) << 16, given.data]);
    }
    // SAFETY: the words form an argument whose memory is live and not borrowed. Other addresses are
    // refused by the kernel or lie in the arena.
    let attributes = unsafe { Attributes::read(words.as_mut_ptr() as u64) };
    attributes.ok().map(|attributes| context.call(&attributes))
}

/// The tests count objects, so they run one at a time.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn the_right_calls_are_right() {
    let _turn = TURN.lock();
    let (adapter, _) = adapter();
    let context = Context::new(Arc::clone(adapter));
    context.state().devx = true;
    for call in beginning().into_iter().chain(usual()) {
        let what = format!("{call:x?}");
        assert_eq!(carry_out(&context, call), Some(Ok(())), "{what}");
    }
}

/// A call that cannot read its arguments, or cannot write its results, creates nothing.
#[test]
fn what_is_not_given_to_the_program_is_destroyed() {
    let _turn = TURN.lock();
    let (adapter, _) = adapter();
    let calls = beginning();
    let mut refusals = 0;
    for (number, call) in calls.iter().enumerate() {
        for at in 0..call.list.len() {
            if call.list[at].memory.is_none() {
                continue;
            }
            // Handles are those of a new context.
            let context = Context::new(Arc::clone(adapter));
            context.state().devx = true;
            for earlier in &calls[..number] {
                assert_eq!(carry_out(&context, earlier.clone()), Some(Ok(())));
            }
            let (before, mut call) = (adapter.device.objects(), call.clone());
            let lost = &mut call.list[at];
            *lost = nowhere(lost.id, lost.length);
            let what = format!("{call:x?}");
            if let Some(Err(refused)) = carry_out(&context, call) {
                assert_eq!(refused, Errno(libc::EFAULT), "{what}");
                assert_eq!(adapter.device.objects(), before, "{what}");
                let kinds = context.state().objects.handles(|_| true).len();
                assert!(kinds <= number, "{what}: {kinds} objects");
                refusals += 1;
            }
        }
    }
    assert!(refusals > calls.len(), "{refusals}");
}

/// A program that cannot read the results gets no device memory and no region of it.
#[test]
fn device_memory_whose_handle_is_not_given_is_freed() {
    const EVERYTHING: u64 = 128 << 10;
    const LOCAL_WRITE_ZERO_BASED: u64 = 1 | 1 << 5;
    let _turn = TURN.lock();
    let (adapter, _) = adapter();
    let before = adapter.device.objects();
    let context = Context::new(Arc::clone(adapter));
    let allocate = |results: [Given; 2]| {
        let [offset, page] = results;
        let sizes = [given_number(1, EVERYTHING), given_number(2, 0)];
        let list = [vec![handle(0, 0)], sizes.to_vec(), vec![offset, page]].concat();
        Call { object: 14, method: 0, list }
    };
    let refused = Some(Err(Errno(libc::EFAULT)));
    for results in
        [[nowhere(0x1000, 8), output(0x1001, 2)], [output(0x1000, 8), nowhere(0x1001, 2)]]
    {
        assert_eq!(carry_out(&context, allocate(results)), refused);
    }
    let results = [output(0x1000, 8), output(0x1001, 2)];
    assert_eq!(carry_out(&context, allocate(results)), Some(Ok(())), "all of it is free");

    assert_eq!(carry_out(&context, legacy(3, &[0])), Some(Ok(())), "a protection domain");
    let handles = |is: fn(&Object) -> bool| context.state().objects.handles(is);
    let pd = handles(crate::object::is_pd)[0].into();
    let memory = handles(|object| matches!(object, Object::Dm(_)))[0].into();
    let register = |access, lkey| {
        let range = [given_number(1, 0), given_number(2, 64)];
        let objects = [handle(3, pd), given_number(4, access), handle(5, memory)];
        let keys = vec![lkey, output(7, 4)];
        let list = [vec![handle(0, 0)], range.to_vec(), objects.to_vec(), keys].concat();
        Call { object: 7, method: 0, list }
    };
    let invalid = Some(Err(Errno::INVALID));
    let high = 1 << 32 | LOCAL_WRITE_ZERO_BASED;
    assert_eq!(carry_out(&context, register(high, output(6, 4))), invalid, "unknown flags");
    let live = adapter.device.objects();
    assert_eq!(carry_out(&context, register(LOCAL_WRITE_ZERO_BASED, nowhere(6, 4))), refused);
    assert_eq!(adapter.device.objects(), live);
    let right = register(LOCAL_WRITE_ZERO_BASED, output(6, 4));
    assert_eq!(carry_out(&context, right), Some(Ok(())));
    drop(context);
    assert_eq!(adapter.device.objects(), before);
}

/// A program that cannot read the results gets no shared receive queue.
#[test]
fn shared_receive_queues_whose_handle_is_not_given_are_freed() {
    const BASIC: u64 = 0;
    const TAGS: u64 = 2;
    /// One less than the entries of the longest list.
    const MOST_TAGS: u64 = 4095;
    const USER_HANDLE: u16 = 4;
    let _turn = TURN.lock();
    let (adapter, _) = adapter();
    let context = Context::new(Arc::clone(adapter));
    for call in beginning().into_iter().take(3) {
        assert_eq!(carry_out(&context, call), Some(Ok(())));
    }
    let create = |kind, tags, number| Call {
        object: 5,
        method: 0,
        list: vec![
            handle(0, 0),
            handle(1, 0),
            handle(3, 2),
            given_number(USER_HANDLE, 1),
            given_number(5, 15),
            given_number(6, 1),
            given_number(8, tags),
            given_number(9, kind),
            number,
            input(0x1000, 32, &[arena() + 0x1000, arena() + 0x4040, 0, 0]),
            output(0x1001, 8),
        ],
    };
    let live = adapter.device.objects();
    for kind in [BASIC, TAGS] {
        let refused = carry_out(&context, create(kind, MOST_TAGS, nowhere(13, 4)));
        assert_eq!(refused, Some(Err(Errno(libc::EFAULT))));
        let mut incomplete = create(kind, MOST_TAGS, output(13, 4));
        incomplete.list.retain(|given| given.id != USER_HANDLE);
        assert!(carry_out(&context, incomplete).is_some_and(|result| result.is_err()));
        assert_eq!(adapter.device.objects(), live);
    }
    for tags in [0, MOST_TAGS + 1] {
        let refused = carry_out(&context, create(TAGS, tags, output(13, 4)));
        assert_eq!(refused, Some(Err(Errno::INVALID)), "{tags}");
    }
    let made = carry_out(&context, create(TAGS, MOST_TAGS, output(13, 4)));
    assert_eq!(made, Some(Ok(())));
}

/// Every call that registers memory for the device to write to.
#[test]
fn memory_that_the_program_may_only_read_is_not_registered_for_writing() {
    const ARENA: u64 = 1 << 18;
    /// `IB_MR_REREG_ACCESS`.
    const ACCESS: u64 = 4;
    let _turn = TURN.lock();
    let (adapter, _) = adapter();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let (nowhere, rights) = (std::ptr::null_mut(), libc::PROT_READ);
    // SAFETY: new pages, at an address that the kernel chooses.
    let memory = unsafe { libc::mmap(nowhere, ARENA as usize, rights, flags, -1, 0) };
    let read_only = memory.addr() as u64;
    let change = |word: u64| match word.checked_sub(arena()) {
        Some(offset) if offset < ARENA => read_only + offset,
        _ => word,
    };
    let context = Context::new(Arc::clone(adapter));
    context.state().devx = true;
    let mut refusals = 0;
    for call in beginning() {
        let live = adapter.device.objects();
        for at in 0..call.list.len() {
            let mut wrong = call.clone();
            let given = &mut wrong.list[at];
            let before = given.clone();
            given.data = change(given.data);
            given.memory.iter_mut().flatten().for_each(|word| *word = change(*word));
            if (given.data, &given.memory) != (before.data, &before.memory) {
                let what = format!("{wrong:x?}");
                assert_eq!(carry_out(&context, wrong), Some(Err(Errno::FAULT)), "{what}");
                assert_eq!(adapter.device.objects(), live, "{what}");
                refusals += 1;
            }
        }
        assert_eq!(carry_out(&context, call), Some(Ok(())));
    }
    // A region, a UMEM, and the rings of a completion queue, shared receive queue and queue pair.
    assert_eq!(refusals, 5);
    let for_reading = legacy(9, &[0, read_only, 4096, read_only, 0]);
    assert_eq!(carry_out(&context, for_reading), Some(Ok(())));
    let regions = context.state().objects.handles(|object| matches!(object, Object::Mr(_)));
    let region = regions.into_iter().max().unwrap();
    let for_writing = legacy(11, &[0, ACCESS << 32 | u64::from(region), 0, 0, 0, 1 << 32]);
    assert_eq!(carry_out(&context, for_writing), Some(Err(Errno::FAULT)));
    drop(context);
    // SAFETY: the mapping above, to which nothing refers any more.
    unsafe { libc::munmap(memory, ARENA as usize) };
}

/// As by the kernel: a group is attached once, and a queue pair that is attached is not destroyed.
#[test]
fn groups_are_attached_and_detached_with_the_errors_of_the_kernel() {
    const ATTACH: u64 = 30;
    const DETACH: u64 = 31;
    const RC: u64 = 4;
    const UD: u64 = 5;
    let _turn = TURN.lock();
    let (adapter, _) = adapter();
    let context = Context::new(Arc::clone(adapter));
    let mut calls: Vec<Call> = beginning().into_iter().take(5).collect();
    calls.push(calls[4].clone());
    // `ib_uverbs_qp_type`.
    calls[5].list.iter_mut().filter(|given| given.id == 9).for_each(|given| given.data = 4);
    for call in calls {
        assert_eq!(carry_out(&context, call), Some(Ok(())));
    }
    // GID, handle and LID, byte for byte.
    let run = |command, last: u64, qp: u64| {
        let mut bytes = [0_u8; 24];
        bytes[10..16].copy_from_slice(&[0xff, 0xff, last as u8, 9, 8, 7]);
        bytes[16..20].copy_from_slice(&(qp as u32).to_le_bytes());
        bytes[20..22].copy_from_slice(&[0x34, 0x12]);
        let words: [u64; 3] = zerocopy::transmute!(bytes);
        carry_out(&context, legacy(command, &words))
    };
    let destroy = || carry_out(&context, Call { object: 4, method: 1, list: vec![handle(0, UD)] });
    let (done, invalid) = (Some(Ok(())), Some(Err(Errno::INVALID)));
    assert_eq!(run(ATTACH, 239, RC), invalid);
    assert_eq!(run(ATTACH, 10, UD), invalid, "no group");
    assert_eq!(run(ATTACH, 239, 77), invalid, "no queue pair");
    assert_eq!(run(DETACH, 239, UD), invalid, "not attached");
    for _ in 0..2 {
        assert_eq!(run(ATTACH, 239, UD), done);
    }
    assert_eq!(destroy(), Some(Err(Errno::BUSY)));
    assert_eq!(run(DETACH, 238, UD), invalid);
    assert_eq!(run(DETACH, 239, UD), done);
    assert_eq!(run(DETACH, 239, UD), invalid);
    assert_eq!(run(ATTACH, 239, UD), done);
    let attributes = crate::method::device::attributes(adapter).unwrap();
    let groups = (attributes.max_mcast_grp, attributes.max_mcast_qp_attach);
    assert_eq!((groups, attributes.max_total_mcast_qp_attach), ((64, 240), 64 * 240));
    // Closing the descriptor ends it.
    let before = adapter.device.objects().queue_pairs;
    drop(context);
    assert_eq!(adapter.device.objects().queue_pairs, before - 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_leave_nothing_behind(calls in prop::collection::vec(prop_oneof![call(), nearly_right()], 1..60)) {
        let _turn = TURN.lock();
        let (adapter, _) = adapter();
        let before = adapter.device.objects();
        let context = Context::new(Arc::clone(adapter));
        context.state().devx = true;
        for call in beginning() {
            let what = format!("{call:x?}");
            prop_assert_eq!(carry_out(&context, call), Some(Ok(())), "{}", what);
        }
        for call in calls {
            carry_out(&context, call);
        }
        drop(context);
        prop_assert_eq!(adapter.device.objects(), before);
    }
}
