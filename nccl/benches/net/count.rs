//! Messages from start to end, each completed before the next. Callgrind counts the functions
//! `measured_*`, and writes what it has counted when a function `after_*` returns.

use core::ffi::c_int;
use core::ptr;
use std::thread;
use std::time::{Duration, Instant};

use nccl_net_barewire::abi::{Code, Net12};

use crate::comms::{Any, Comms};
use crate::{Outcome, ok};

/// Bytes of a message.
const LENGTH: usize = 64 << 10;
const GROUP: usize = 8;
/// Messages before those that count.
const WARM_UP: u64 = 8;
/// In this time, devices carry out what was posted, also under callgrind.
const SETTLE: Duration = Duration::from_millis(20);
const DEADLINE: Duration = Duration::from_mins(1);

macro_rules! marks {
    ($($name:ident $number:literal)+) => {
        $(#[inline(never)]
        fn $name() {
            // The linker would merge equal functions.
            std::hint::black_box($number);
        })+
    };
}

marks! {
    after_warm_up 0
    after_irecv 1
    after_isend 2
    after_early 3
    after_nothing 4
    after_received 5
    after_sent 6
    after_late 7
}

/// The buffers of a group, as arguments.
struct Buffers {
    count: usize,
    data: [Any; GROUP],
    lengths: [usize; GROUP],
    tags: [c_int; GROUP],
    memories: [Any; GROUP],
    profiler: [Any; GROUP],
}

#[inline(never)]
fn measured_receive(comms: &Comms, buffers: &Buffers, request: &mut Any) -> Code {
    // SAFETY: the comm and its memory are open, and each array has as many elements as it says.
    unsafe {
        comms.net.receive.unwrap()(
            comms.receives,
            buffers.count as c_int,
            buffers.data.as_ptr(),
            buffers.lengths.as_ptr(),
            buffers.tags.as_ptr(),
            buffers.memories.as_ptr(),
            buffers.profiler.as_ptr(),
            request,
        )
    }
}

#[inline(never)]
fn measured_send(comms: &Comms, data: Any, tag: c_int, request: &mut Any) -> Code {
    // SAFETY: the comm is open, and the memory has as many bytes from `data` on.
    unsafe {
        let send = comms.net.send.unwrap();
        send(comms.sends, data, LENGTH, tag, comms.handles[0], ptr::null_mut(), request)
    }
}

#[inline(never)]
fn measured_test(
    comms: &Comms,
    request: Any,
    done: &mut c_int,
    sizes: &mut [c_int; GROUP],
) -> Code {
    // SAFETY: the request is outstanding on an open comm.
    unsafe { comms.net.test.unwrap()(request, done, sizes.as_mut_ptr()) }
}

pub(crate) fn run(net: &'static Net12, [rails, group, messages]: [&str; 3]) -> Outcome<()> {
    let (rails, count, messages): (_, usize, u64) =
        (rails.parse()?, group.parse()?, messages.parse()?);
    if !(1..=2).contains(&rails) || !(1..=GROUP).contains(&count) {
        return Err("1 or 2 rails, and groups of 1 to 8".into());
    }
    let comms = Comms::open(net, rails, GROUP * LENGTH);
    let buffers = Buffers {
        count,
        data: std::array::from_fn(|at| comms.memory[1].wrapping_add(at * LENGTH).cast()),
        lengths: [LENGTH; GROUP],
        tags: std::array::from_fn(|at| 100 + at as c_int),
        memories: [comms.handles[1]; GROUP],
        profiler: [ptr::null_mut(); GROUP],
    };
    for number in 1..=WARM_UP + messages {
        message(&comms, &buffers, number)?;
        if number == WARM_UP {
            after_warm_up();
        }
    }
    Ok(())
}

/// Returns the last word of a buffer of the source or the target.
fn last(memory: *mut u8, at: usize) -> *mut u64 {
    memory.wrapping_add((at + 1) * LENGTH - size_of::<u64>()).cast()
}

fn message(comms: &Comms, buffers: &Buffers, number: u64) -> Outcome<()> {
    let members = 0..buffers.count;
    for at in members.clone() {
        // SAFETY: the word lies in the memory, whose buffers begin at multiples of a page.
        unsafe { last(comms.memory[0], at).write_volatile(number) };
    }
    let data = |at: usize| comms.memory[0].wrapping_add(at * LENGTH).cast();
    let mut early = ptr::null_mut();
    let code = measured_send(comms, data(0), buffers.tags[0], &mut early);
    after_early();
    ok("isend", code)?;
    if !early.is_null() {
        return Err("a send without an announcement".into());
    }
    let mut receiving = ptr::null_mut();
    let code = measured_receive(comms, buffers, &mut receiving);
    after_irecv();
    ok("irecv", code)?;
    if receiving.is_null() {
        return Err("no request is free".into());
    }
    thread::sleep(SETTLE);
    let (mut done, mut sizes) = (0, [-1; GROUP]);
    let code = measured_test(comms, receiving, &mut done, &mut sizes);
    after_nothing();
    ok("test", code)?;
    if done != 0 {
        return Err("a message arrived that was not sent".into());
    }
    let mut sending = [ptr::null_mut(); GROUP];
    for at in members.clone() {
        repeat(|| {
            let code = measured_send(comms, data(at), buffers.tags[at], &mut sending[at]);
            (code, !sending[at].is_null(), after_isend)
        })?;
    }
    let posted = Instant::now();
    // SAFETY: as above, for the target; the device may write the word at the same time.
    while !members.clone().all(|at| unsafe { last(comms.memory[1], at).read_volatile() } == number)
    {
        if posted.elapsed() > DEADLINE {
            return Err(format!("message {number} did not arrive").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(SETTLE);
    repeat(|| (measured_test(comms, receiving, &mut done, &mut sizes), done != 0, after_received))?;
    if sizes[members].iter().any(|size| *size != LENGTH as c_int) {
        return Err(format!("message {number} has the sizes {sizes:?}").into());
    }
    for request in &sending[..buffers.count] {
        let mut done = 0;
        repeat(|| (measured_test(comms, *request, &mut done, &mut sizes), done != 0, after_sent))?;
    }
    Ok(())
}

/// Calls until the operation is done; a call before that counts as late. The call returns its code,
/// whether it is done, and its mark.
fn repeat(mut call: impl FnMut() -> (Code, bool, fn())) -> Outcome<()> {
    let begun = Instant::now();
    loop {
        let (code, done, mark) = call();
        if done {
            mark();
            return ok("the call", code);
        }
        after_late();
        ok("the call", code)?;
        if begun.elapsed() > DEADLINE {
            return Err("the operation is not done".into());
        }
        thread::sleep(SETTLE);
    }
}
