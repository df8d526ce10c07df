//! Every operation that an interface advertises, at its limits and beyond, and the flags themselves.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rigs"
)]

use std::ffi::{CStr, c_uint, c_void};
use std::ptr::null_mut;

use barewire::{AtomicOperations, Flags};

use super::pair::{Pair, Region, TRANSPORTS, attributes};
use super::{append, unpack};
use crate::abi::{AtomicCaps, Completion, IfaceAttr, PendingReq, RmaCaps, iface_flag as f};
use crate::status::{BUSY, INVALID_PARAM, OK, UNSUPPORTED};
use crate::{dispatch, iface};

/// Returns the status of a buffered copy that has to return `length`.
fn status_of(returned: isize, length: usize) -> i8 {
    if returned < 0 {
        return returned as i8;
    }
    assert_eq!(returned, length as isize, "the length of a buffered copy");
    OK
}

/// Flags whose names are the same.
const SAME: [(u64, Flags); 14] = [
    (f::AM_SHORT, Flags::AM_SHORT),
    (f::AM_BCOPY, Flags::AM_BCOPY),
    (f::PENDING, Flags::PENDING),
    (f::PUT_SHORT, Flags::PUT_SHORT),
    (f::PUT_BCOPY, Flags::PUT_BCOPY),
    (f::GET_BCOPY, Flags::GET_BCOPY),
    (f::ATOMIC_CPU, Flags::ATOMIC_CPU),
    (f::ATOMIC_DEVICE, Flags::ATOMIC_DEVICE),
    (f::ERRHANDLE_PEER_FAILURE, Flags::ERRHANDLE_PEER_FAILURE),
    (f::ERRHANDLE_REMOTE_MEM, Flags::ERRHANDLE_REMOTE_MEM),
    (f::EP_CHECK, Flags::EP_CHECK),
    (f::AM_ZCOPY, Flags::AM_ZCOPY),
    (f::PUT_ZCOPY, Flags::PUT_ZCOPY),
    (f::GET_ZCOPY, Flags::GET_ZCOPY),
];

#[test]
fn flags_are_those_of_the_attributes() {
    for (transport, device) in TRANSPORTS {
        let Some(pair) = Pair::over(transport, device) else { return };
        let attr = attributes(&pair.own);
        let ours = unsafe { (*pair.own.iface).interface.attributes() };
        let (flags, is_shm) = (attr.cap.flags, transport == c"shm");
        let mut known = f::CB_SYNC | f::ERRHANDLE_AM_ID;
        assert_eq!(flags & known, known, "{transport:?}");
        for (flag, own) in SAME {
            // Programs cannot register memory over `shm`.
            let is_zcopy = flag & (f::AM_ZCOPY | f::PUT_ZCOPY | f::GET_ZCOPY) != 0;
            let expected = ours.flags.contains(own) && !(is_shm && is_zcopy);
            assert_eq!(flags & flag != 0, expected, "{transport:?}: {own:?}");
            known |= flag;
        }
        let get_short = is_shm || transport == c"self";
        assert_eq!(flags & f::GET_SHORT != 0, get_short, "{transport:?}");
        // Without a key of the job, transports that need it connect endpoints only.
        let to_interfaces = ours.flags.contains(Flags::CONNECT_TO_INTERFACE);
        let both = [c"tcp", c"ud_mlx5"];
        let to_endpoints = !to_interfaces || both.contains(&transport);
        assert_eq!(flags & f::CONNECT_TO_EP != 0, to_endpoints, "{transport:?}");
        if to_interfaces {
            assert_ne!(flags & f::CONNECT_TO_IFACE, 0, "{transport:?}");
        }
        known |= f::GET_SHORT | f::CONNECT_TO_EP | f::CONNECT_TO_IFACE;
        assert_eq!(flags & !known, 0, "{transport:?}: other flags");
        for (flag, limit) in [
            (f::AM_SHORT, attr.cap.am.max_short),
            (f::AM_BCOPY, attr.cap.am.max_bcopy),
            (f::AM_ZCOPY, attr.cap.am.max_zcopy),
            (f::PUT_SHORT, attr.cap.put.max_short),
            (f::PUT_BCOPY, attr.cap.put.max_bcopy),
            (f::PUT_ZCOPY, attr.cap.put.max_zcopy),
            (f::GET_SHORT, attr.cap.get.max_short),
            (f::GET_BCOPY, attr.cap.get.max_bcopy),
            (f::GET_ZCOPY, attr.cap.get.max_zcopy),
        ] {
            assert_eq!(flags & flag != 0, limit > 0, "{transport:?}: flag {flag:x}, limit {limit}");
        }
        let has_atomics = |caps: &AtomicCaps| caps.op_flags | caps.fop_flags != 0;
        let atomics = has_atomics(&attr.cap.atomic32) || has_atomics(&attr.cap.atomic64);
        assert_eq!(flags & (f::ATOMIC_CPU | f::ATOMIC_DEVICE) != 0, atomics, "{transport:?}");
        for (caps, own) in
            [(&attr.cap.atomic32, ours.atomic32), (&attr.cap.atomic64, ours.atomic64)]
        {
            let bits = (caps.op_flags | caps.fop_flags << 32).count_ones();
            assert_eq!(bits, own.bits().count_ones(), "{transport:?}: {own:?}");
            assert_eq!(caps.fop_flags >> 5 & 1 != 0, own.contains(AtomicOperations::COMPARE_SWAP));
        }
        let mut descriptor = -1;
        let got = unsafe { dispatch::uct_iface_event_fd_get(pair.own.iface, &raw mut descriptor) };
        let has_descriptor = attr.cap.event_flags != 0;
        assert_eq!(got == OK, has_descriptor, "{transport:?}: status {got}");
        assert_eq!(ours.flags.contains(Flags::EVENT_FD), has_descriptor, "{transport:?}");
        if flags & f::EP_CHECK != 0 {
            let check = |_| unsafe { dispatch::uct_ep_check(pair.ep, 0, null_mut()) };
            assert_eq!(pair.post("check", check), OK, "{transport:?}");
        }
        if flags & f::PENDING != 0 {
            let flush = pair.own.ops().iface_flush;
            pair.until("connect", || unsafe { flush(pair.own.iface, 0, null_mut()) } == OK);
            let mut request = PendingReq { func: None, private: [0; 40] };
            let add = pair.own.ops().ep_pending_add;
            assert_eq!(unsafe { add(pair.ep, &raw mut request, 0) }, BUSY, "{transport:?}");
        }
    }
}

/// The smallest and the largest length, as far as memory goes.
fn lengths(least: usize, most: usize) -> [usize; 3] {
    [least.max(1), least.midpoint(most.min(Region::LENGTH)), most.min(Region::LENGTH)]
}

/// What a callback packs.
struct Source<'a>(&'a Region, usize);

unsafe extern "C" fn pack(target: *mut u8, source: *mut c_void) -> usize {
    let source = unsafe { &*source.cast::<Source<'_>>() };
    let bytes = source.0.read(source.1);
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    bytes.len()
}

/// Whether to call an operation of this flag.
fn has(attr: &IfaceAttr, flag: u64) -> bool {
    attr.cap.flags & flag != 0
}

fn buffer(region: &Region) -> *mut u8 {
    region.pieces(1, 1)[0].buffer
}

fn short_length(length: usize) -> c_uint {
    length.try_into().unwrap()
}

/// Calls `put` with every length, and compares the peer's memory.
fn puts(pair: &Pair, what: &str, lengths: [usize; 3], put: impl Fn(usize, *mut Completion) -> i8) {
    for (seed, length) in (1..).zip(lengths) {
        pair.local.fill(seed);
        pair.remote.fill(0);
        assert_eq!(pair.post(what, |done| put(length, done)), OK, "{what}: {length}");
        pair.flush(what);
        assert!(pair.remote.read(length) == pair.local.read(length), "{what}: {length}");
        let behind =
            |region: &Region| region.read((length + 64).min(Region::LENGTH)).split_off(length);
        let written = behind(&pair.remote);
        pair.remote.fill(0);
        assert_eq!(written, behind(&pair.remote), "{what}: behind {length}");
    }
}

/// Calls `get` with every length, and compares what it read.
fn gets(pair: &Pair, what: &str, lengths: [usize; 3], get: impl Fn(usize, *mut Completion) -> i8) {
    for (seed, length) in (1..).zip(lengths) {
        pair.local.fill(0);
        pair.remote.fill(seed);
        assert_eq!(pair.post(what, |done| get(length, done)), OK, "{what}: {length}");
        assert!(pair.local.read(length) == pair.remote.read(length), "{what}: {length}");
    }
}

/// One piece, and as many pieces as there may be.
fn pieces(caps: &RmaCaps) -> Vec<(usize, usize)> {
    let most = caps.max_iov;
    let short = caps.min_zcopy.max(8);
    lengths(caps.min_zcopy, caps.max_zcopy)
        .map(|length| (length, 1))
        .into_iter()
        .chain([(short, most)])
        .collect()
}

fn rma(pair: &Pair, name: &str, attr: &IfaceAttr) {
    let (ops, to, key) = (pair.own.ops(), pair.remote.address(), pair.rkey());
    let (put, get) = (&attr.cap.put, &attr.cap.get);
    let (ep, local) = (pair.ep, buffer(&pair.local));
    if has(attr, f::PUT_SHORT) {
        let short = |length, _: *mut Completion| unsafe {
            (ops.ep_put_short)(ep, local, short_length(length), to, key)
        };
        puts(pair, &format!("{name}: put_short"), lengths(0, put.max_short), short);
        if put.max_short < Region::LENGTH {
            assert_eq!(short(put.max_short + 1, null_mut()), INVALID_PARAM, "{name}");
        }
    }
    if has(attr, f::PUT_BCOPY) {
        puts(pair, &format!("{name}: put_bcopy"), lengths(0, put.max_bcopy), |length, _| {
            let mut source = Source(&pair.local, length);
            let put =
                unsafe { (ops.ep_put_bcopy)(ep, Some(pack), (&raw mut source).cast(), to, key) };
            status_of(put, length)
        });
    }
    for (length, count) in pieces(put).into_iter().filter(|_| has(attr, f::PUT_ZCOPY)) {
        let total = [length * count; 3];
        puts(pair, &format!("{name}: put_zcopy of {count}"), total, |_, done| {
            let iov = pair.local.pieces(length, count);
            unsafe { (ops.ep_put_zcopy)(ep, iov.as_ptr(), iov.len(), to, key, done) }
        });
    }
    if has(attr, f::GET_SHORT) {
        gets(pair, &format!("{name}: get_short"), lengths(0, get.max_short), |length, _| unsafe {
            (ops.ep_get_short)(ep, local, short_length(length), to, key)
        });
    }
    if has(attr, f::GET_BCOPY) {
        for length in lengths(0, get.max_bcopy) {
            pair.remote.fill(9);
            let mut received = Vec::<u8>::new();
            let argument = (&raw mut received).cast();
            let got = pair.post("get_bcopy", |done| unsafe {
                (ops.ep_get_bcopy)(ep, Some(unpack), argument, length, to, key, done)
            });
            assert_eq!(got, OK, "{name}: get_bcopy {length}");
            assert!(received == pair.remote.read(length), "{name}: get_bcopy {length}");
        }
        if get.max_bcopy < Region::LENGTH {
            let mut received = Vec::<u8>::new();
            let (argument, length) = ((&raw mut received).cast(), get.max_bcopy + 1);
            let got = unsafe {
                (ops.ep_get_bcopy)(ep, Some(unpack), argument, length, to, key, null_mut())
            };
            assert_eq!(got, INVALID_PARAM, "{name}: get_bcopy {length}");
        }
    }
    for (length, count) in pieces(get).into_iter().filter(|_| has(attr, f::GET_ZCOPY)) {
        let total = [length * count; 3];
        gets(pair, &format!("{name}: get_zcopy of {count}"), total, |_, done| {
            let iov = pair.local.pieces(length, count);
            unsafe { (ops.ep_get_zcopy)(ep, iov.as_ptr(), iov.len(), to, key, done) }
        });
    }
    for (flag, most, operation) in [
        (f::PUT_ZCOPY, put.max_iov, ops.ep_put_zcopy),
        (f::GET_ZCOPY, get.max_iov, ops.ep_get_zcopy),
    ] {
        if has(attr, flag) {
            let iov = pair.local.pieces(64, most + 1);
            let posted = unsafe { operation(ep, iov.as_ptr(), iov.len(), to, key, null_mut()) };
            assert_eq!(posted, INVALID_PARAM, "{name}: {} pieces", iov.len());
        }
    }
}

fn messages(pair: &Pair, name: &str, attr: &IfaceAttr) {
    const ID: u8 = 31;
    let (ops, am, ep) = (pair.own.ops(), &attr.cap.am, pair.ep);
    let mut received = Vec::<Vec<u8>>::new();
    let inbox = (&raw mut received).cast();
    if !has(attr, f::AM_SHORT | f::AM_BCOPY | f::AM_ZCOPY) {
        return;
    }
    let set = iface::uct_iface_set_am_handler;
    assert_eq!(unsafe { set(pair.peer().iface, ID, Some(append), inbox, 0) }, OK);
    let local = buffer(&pair.local);
    let take = |what: &str, length: usize| {
        let inbox = inbox.cast::<Vec<Vec<u8>>>();
        pair.until(what, || unsafe { !(*inbox).is_empty() });
        let message = unsafe { (*inbox).pop() }.unwrap();
        assert!(unsafe { (*inbox).is_empty() }, "{name}: {what} of {length} arrived twice");
        assert!(message == pair.local.read(length), "{name}: {what} of {length}");
    };
    let no_short = lengths(0, am.max_short).into_iter().filter(|_| has(attr, f::AM_SHORT));
    for length in no_short.map(|length| length.max(8)) {
        pair.local.fill(3);
        let header = pair.local.word();
        let short = |length: usize| unsafe {
            (ops.ep_am_short)(ep, ID, header, local.add(8), short_length(length - 8))
        };
        assert_eq!(pair.post("am_short", |_| short(length)), OK, "{name}: am_short {length}");
        take("am_short", length);
        assert_eq!(short(am.max_short + 1), INVALID_PARAM, "{name}: am_short");
        let iov = [pair.local.pieces(length, 1)[0]];
        let short = |_| unsafe { (ops.ep_am_short_iov)(ep, ID, iov.as_ptr(), 1) };
        assert_eq!(pair.post("am_short_iov", short), OK, "{name}: am_short_iov {length}");
        take("am_short_iov", length);
    }
    for length in lengths(0, am.max_bcopy).into_iter().filter(|_| has(attr, f::AM_BCOPY)) {
        pair.local.fill(4);
        let mut source = Source(&pair.local, length);
        let sent = pair.post("am_bcopy", |_| unsafe {
            let argument = (&raw mut source).cast();
            let sent = (ops.ep_am_bcopy)(ep, ID, Some(pack), argument, 0);
            status_of(sent, length)
        });
        assert_eq!(sent, OK, "{name}: am_bcopy {length}");
        take("am_bcopy", length);
    }
    if has(attr, f::AM_ZCOPY) {
        let longest = am.max_zcopy.min(Region::LENGTH);
        for (header, length, count) in [
            (0, longest, 1),
            (am.max_hdr, longest - am.max_hdr, 1),
            (0, 8, am.max_iov),
            (am.max_hdr, 0, 0),
        ] {
            pair.local.fill(5);
            let iov: Vec<_> = pair
                .local
                .pieces(1, count)
                .into_iter()
                .enumerate()
                .map(|(at, piece)| crate::abi::Iov {
                    buffer: local.wrapping_add(header + at * length),
                    length,
                    ..piece
                })
                .collect();
            let sent = pair.post("am_zcopy", |done| unsafe {
                (ops.ep_am_zcopy)(ep, ID, local, header as c_uint, iov.as_ptr(), count, 0, done)
            });
            assert_eq!(sent, OK, "{name}: am_zcopy {header} + {count} * {length}");
            take("am_zcopy", header + count * length);
        }
        let iov = pair.local.pieces(8, am.max_iov + 1);
        for (header, count) in [(am.max_hdr + 1, 1), (0, am.max_iov + 1)] {
            let sent = unsafe {
                let (header, list) = (header as c_uint, iov.as_ptr());
                (ops.ep_am_zcopy)(ep, ID, local, header, list, count, 0, null_mut())
            };
            assert_eq!(sent, INVALID_PARAM, "{name}: am_zcopy {header} {count}");
        }
    }
    assert_eq!(unsafe { set(pair.peer().iface, ID, None, null_mut(), 0) }, OK);
}

/// What an atomic operation leaves in a word; the last one is compare and swap with a wrong value.
fn result(opcode: c_uint, word: u64, value: u64) -> u64 {
    [word.wrapping_add(value), word & value, word | value, word ^ value, value, word]
        [opcode as usize]
}

fn atomics(pair: &Pair, name: &str, attr: &IfaceAttr) {
    let (ops, to, key, ep) = (pair.own.ops(), pair.remote.address(), pair.rkey(), pair.ep);
    let (word, value) = (0x0123_4567_89ab_cdef_u64, 0x00ff_00ff_0f0f_0f0f_u64);
    for opcode in 0..6 {
        for (is_long, caps) in [(true, &attr.cap.atomic64), (false, &attr.cap.atomic32)] {
            let what = format!("{name}: atomic {opcode}, {is_long}");
            let (mask, mut old, mut old32) = (if is_long { u64::MAX } else { 0xffff_ffff }, 0, 0);
            let expected = word & !mask | result(opcode, word, value) & mask;
            pair.remote.set_word(word);
            let posted = pair.post(&what, |_| unsafe {
                if is_long {
                    (ops.ep_atomic64_post)(ep, opcode, value, to, key)
                } else {
                    (ops.ep_atomic32_post)(ep, opcode, value as u32, to, key)
                }
            });
            let has_post = caps.op_flags >> opcode & 1 != 0;
            assert_eq!(posted, if has_post { OK } else { UNSUPPORTED }, "{what}");
            if has_post {
                pair.flush(&what);
                assert_eq!(pair.remote.word(), expected, "{what}");
            }
            pair.remote.set_word(word);
            let fetched = pair.post(&what, |done| unsafe {
                let (old, old32) = (&raw mut old, &raw mut old32);
                let short = value as u32;
                match (opcode, is_long) {
                    (5, true) => (ops.ep_atomic_cswap64)(ep, !word, value, to, key, old, done),
                    (5, false) => {
                        (ops.ep_atomic_cswap32)(ep, !word as u32, short, to, key, old32, done)
                    }
                    (_, true) => (ops.ep_atomic64_fetch)(ep, opcode, value, old, to, key, done),
                    (_, false) => (ops.ep_atomic32_fetch)(ep, opcode, short, old32, to, key, done),
                }
            });
            let has_fetch = caps.fop_flags >> opcode & 1 != 0;
            assert_eq!(fetched, if has_fetch { OK } else { UNSUPPORTED }, "{what}: fetch");
            if has_fetch {
                let found = if is_long { old } else { old32.into() };
                assert_eq!((found, pair.remote.word()), (word & mask, expected), "{what}: fetch");
            }
        }
    }
}

fn at_its_limits((transport, device): (&'static CStr, &'static CStr)) {
    let Some(pair) = Pair::over(transport, device) else { return };
    let (attr, name) = (attributes(&pair.own), transport.to_str().unwrap());
    rma(&pair, name, &attr);
    messages(&pair, name, &attr);
    atomics(&pair, name, &attr);
}

#[test]
fn operations_at_their_limits_in_memory() {
    TRANSPORTS[..4].iter().for_each(|&transport| at_its_limits(transport));
}

#[test]
fn operations_at_their_limits_over_mlx5() {
    TRANSPORTS[4..].iter().for_each(|&transport| at_its_limits(transport));
}
