//! The plugin's table of version 12, called as NCCL calls it, over software devices.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use std::sync::Once;
use std::time::{Duration, Instant};

use nccl_net_barewire::abi::{self, Code, HOST, Net12, Properties12, Virtual};
use nccl_net_barewire::ncclNetPlugin_v12 as NET;

const DEADLINE: Duration = Duration::from_mins(1);

type Any = *mut c_void;

fn ok(code: Code) {
    assert_eq!(code, abi::SUCCESS);
}

/// Starts the plugin with two software devices.
fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| nccl_net_barewire::use_devices("soft0,soft1"));
    // SAFETY: a null context and configuration are allowed.
    ok(unsafe { NET.init.unwrap()(ptr::null_mut(), 0, ptr::null(), None, ptr::null()) });
}

/// A connected pair of comms, with registered memory.
struct Pair {
    net: &'static Net12,
    sends: Any,
    receives: Any,
    listening: Any,
    /// Words, since devices write them while they are shared.
    memory: [Vec<u8>; 2],
    handles: [Any; 2],
}

impl Pair {
    fn new(device: c_int, bytes: usize) -> Self {
        let net = &NET;
        let mut handle = [0_u8; abi::HANDLE_BYTES];
        let [mut listening, mut sends, mut receives]: [Any; 3] = [ptr::null_mut(); 3];
        let place: Any = handle.as_mut_ptr().cast();
        // SAFETY: the handle has 128 bytes, and every pointer is that of a local.
        ok(unsafe { net.listen.unwrap()(ptr::null_mut(), device, place, &raw mut listening) });
        let start = Instant::now();
        while sends.is_null() || receives.is_null() {
            let none = ptr::null_mut();
            // SAFETY: as above; comms are asked for until they are there.
            unsafe {
                if sends.is_null() {
                    ok(net.connect.unwrap()(none, device, place, &raw mut sends, ptr::null_mut()));
                }
                if receives.is_null() {
                    ok(net.accept.unwrap()(listening, &raw mut receives, ptr::null_mut()));
                }
            }
            assert!(start.elapsed() < DEADLINE, "no connection");
            std::thread::yield_now();
        }
        let mut memory = [(0..bytes).map(|at| (at * 7 + 1) as u8).collect(), vec![0; bytes]];
        let mut handles = [ptr::null_mut(); 2];
        for ((memory, comm), handle) in memory.iter_mut().zip([sends, receives]).zip(&mut handles) {
            let data: Any = Vec::as_mut_ptr(memory).cast();
            // SAFETY: the memory lives until `drop` has deregistered it.
            ok(unsafe { net.register.unwrap()(comm, data, bytes, HOST, handle) });
        }
        Self { net, sends, receives, listening, memory, handles }
    }

    fn receive(&mut self, parts: &[(usize, usize, c_int)]) -> Any {
        let start = Vec::as_mut_ptr(&mut self.memory[1]);
        let data: Vec<Any> = parts.iter().map(|part| start.wrapping_add(part.0).cast()).collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.1).collect();
        let tags: Vec<c_int> = parts.iter().map(|part| part.2).collect();
        let memories = vec![self.handles[1]; parts.len()];
        let mut request = ptr::null_mut();
        // SAFETY: the arrays have as many elements as there are parts.
        ok(unsafe {
            self.net.receive.unwrap()(
                self.receives,
                parts.len() as c_int,
                data.as_ptr(),
                lengths.as_ptr(),
                tags.as_ptr(),
                memories.as_ptr(),
                ptr::null(),
                &raw mut request,
            )
        });
        request
    }

    fn send(&mut self, offset: usize, length: usize, tag: c_int) -> Result<Any, Code> {
        let data: Any = Vec::as_mut_ptr(&mut self.memory[0]).wrapping_add(offset).cast();
        let (comm, memory, start) = (self.sends, self.handles[0], Instant::now());
        let mut request = ptr::null_mut();
        loop {
            let (none, place) = (ptr::null_mut(), &raw mut request);
            // SAFETY: the comm and the memory are open.
            match unsafe { self.net.send.unwrap()(comm, data, length, tag, memory, none, place) } {
                abi::SUCCESS if !request.is_null() => return Ok(request),
                abi::SUCCESS => assert!(start.elapsed() < DEADLINE, "no buffer"),
                code => return Err(code),
            }
            std::thread::yield_now();
        }
    }

    fn wait(&self, request: Any) -> Result<[c_int; 8], Code> {
        let (mut done, mut sizes, start) = (0, [-1; 8], Instant::now());
        while done == 0 {
            // SAFETY: the request is of an open comm, and there is room for eight sizes.
            let code =
                unsafe { self.net.test.unwrap()(request, &raw mut done, sizes.as_mut_ptr()) };
            if code != abi::SUCCESS {
                return Err(code);
            }
            assert!(start.elapsed() < DEADLINE, "not complete");
            std::thread::yield_now();
        }
        Ok(sizes)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: each is freed once, the comms after their memory.
        unsafe {
            ok(self.net.deregister.unwrap()(self.sends, self.handles[0]));
            ok(self.net.deregister.unwrap()(self.receives, self.handles[1]));
            ok(self.net.close_send.unwrap()(self.sends));
            ok(self.net.close_receive.unwrap()(self.receives));
            ok(self.net.close_listen.unwrap()(self.listening));
        }
    }
}

fn merged() -> c_int {
    let (mut number, wanted) = (-1, Virtual { count: 2, devices: [0, 1, 0, 0, 0, 0, 0, 0] });
    // SAFETY: both pointers are valid.
    ok(unsafe { NET.make_virtual.unwrap()(&raw mut number, &raw const wanted) });
    number
}

#[test]
fn messages_arrive_over_one_and_two_rails() {
    start();
    for device in [0, merged()] {
        let mut pair = Pair::new(device, 1 << 20);
        for length in [0, 1, 127, 128, 129, 4096, 4097, 65_536, 1 << 20] {
            pair.memory[1].fill(0);
            let received = pair.receive(&[(0, length, 7)]);
            let sent = pair.send(0, length, 7).unwrap();
            assert_eq!(pair.wait(received).unwrap()[0] as usize, length);
            assert_eq!(pair.wait(sent).unwrap()[0] as usize, length);
            assert!(pair.memory[1][..length] == pair.memory[0][..length], "{length}");
            assert!(pair.memory[1][length..].iter().all(|&byte| byte == 0), "{length}");
        }
    }
}

#[test]
fn more_requests_than_slots_take_turns() {
    start();
    let mut pair = Pair::new(0, 4096);
    for round in 0..300 {
        let received = pair.receive(&[(0, 64, round)]);
        let sent = pair.send(0, 64, round).unwrap();
        pair.wait(received).unwrap();
        pair.wait(sent).unwrap();
    }
    // 32 groups are outstanding; the next is refused for now.
    let posted: Vec<Any> = (0..32).map(|tag| pair.receive(&[(0, 64, tag)])).collect();
    assert!(posted.iter().all(|request| !request.is_null()));
    assert!(pair.receive(&[(0, 64, 99)]).is_null());
    for (tag, received) in posted.into_iter().enumerate() {
        let sent = pair.send(0, 64, tag as c_int).unwrap();
        pair.wait(sent).unwrap();
        pair.wait(received).unwrap();
    }
}

#[test]
fn a_group_takes_sends_by_their_tags() {
    start();
    let mut pair = Pair::new(0, 4096);
    let parts: Vec<_> = (0..8).map(|at| (at * 512, 512, at as c_int)).collect();
    let received = pair.receive(&parts);
    let sent: Vec<Any> =
        (0..8).rev().map(|at| pair.send(at * 512, 100 + at, at as c_int).unwrap()).collect();
    let sizes = pair.wait(received).unwrap();
    assert_eq!(sizes, [100, 101, 102, 103, 104, 105, 106, 107]);
    for request in sent {
        pair.wait(request).unwrap();
    }
    for at in 0..8 {
        let range = at * 512..at * 512 + 100 + at;
        assert_eq!(pair.memory[1][range.clone()], pair.memory[0][range]);
    }
}

#[test]
fn a_send_that_does_not_fit_is_an_error_at_both_ends() {
    start();
    let mut pair = Pair::new(0, 4096);
    let received = pair.receive(&[(0, 100, 1)]);
    assert_eq!(pair.send(0, 101, 1), Err(abi::INVALID_USAGE));
    assert_eq!(pair.wait(received), Err(abi::INVALID_USAGE));
    // The comms work on.
    let received = pair.receive(&[(0, 100, 1)]);
    let sent = pair.send(0, 100, 1).unwrap();
    assert_eq!(pair.wait(received).unwrap()[0], 100);
    pair.wait(sent).unwrap();
}

#[test]
fn wrong_calls_return_a_code() {
    start();
    let mut pair = Pair::new(0, 4096);
    let (net, none) = (&NET, ptr::null_mut::<c_void>());
    let mut out = ptr::null_mut();
    let mut handle = [7_u8; abi::HANDLE_BYTES];
    let place: Any = handle.as_mut_ptr().cast();
    // SAFETY: wrong arguments are null pointers, numbers, and bytes that are no handle; the others
    // are valid.
    unsafe {
        assert_eq!(net.devices.unwrap()(ptr::null_mut()), abi::INVALID_ARGUMENT);
        assert_eq!(net.get_properties.unwrap()(0, ptr::null_mut()), abi::INVALID_ARGUMENT);
        let mut properties = MaybeUninit::<Properties12>::uninit();
        assert_eq!(net.get_properties.unwrap()(99, properties.as_mut_ptr()), abi::SYSTEM_ERROR);
        assert_eq!(net.get_properties.unwrap()(-1, properties.as_mut_ptr()), abi::SYSTEM_ERROR);
        assert_eq!(net.listen.unwrap()(none, 0, none, &raw mut out), abi::INVALID_ARGUMENT);
        assert_eq!(net.listen.unwrap()(none, 99, place, &raw mut out), abi::SYSTEM_ERROR);
        let device = ptr::null_mut();
        assert_eq!(
            net.connect.unwrap()(none, 0, none, &raw mut out, device),
            abi::INVALID_ARGUMENT
        );
        assert_eq!(
            net.connect.unwrap()(none, 0, place, &raw mut out, device),
            abi::INVALID_ARGUMENT
        );
        assert_eq!(net.accept.unwrap()(none, &raw mut out, device), abi::INVALID_ARGUMENT);
        let register = net.register.unwrap();
        assert_eq!(register(none, place, 1, HOST, &raw mut out), abi::INVALID_ARGUMENT);
        assert_eq!(register(pair.sends, place, 1, 2, &raw mut out), abi::INVALID_ARGUMENT);
        assert_eq!(register(pair.sends, none, 1, HOST, &raw mut out), abi::INVALID_ARGUMENT);
        assert_eq!(register(pair.sends, place, 0, HOST, &raw mut out), abi::INVALID_ARGUMENT);
        let mut done = 0;
        assert_eq!(net.test.unwrap()(none, &raw mut done, ptr::null_mut()), abi::INVALID_ARGUMENT);
        let (number, wanted) = (&raw mut done, Virtual { count: 9, devices: [0; 8] });
        assert_eq!(net.make_virtual.unwrap()(number, &raw const wanted), abi::INVALID_ARGUMENT);
        assert_eq!(net.make_virtual.unwrap()(number, ptr::null()), abi::INVALID_ARGUMENT);
        // A send on the receiving comm, and one outside of the memory.
        let data: Any = Vec::as_mut_ptr(&mut pair.memory[0]).cast();
        let send = net.send.unwrap();
        let memory = pair.handles[0];
        assert_eq!(
            send(pair.receives, data, 1, 0, memory, none, &raw mut out),
            abi::INVALID_ARGUMENT
        );
    }
    let received = pair.receive(&[(0, 4096, 3)]);
    assert_eq!(pair.send(1, 4096, 3), Err(abi::INVALID_ARGUMENT));
    let sent = pair.send(0, 4096, 3).unwrap();
    pair.wait(received).unwrap();
    pair.wait(sent).unwrap();
}

#[test]
fn properties_are_those_of_the_devices() {
    start();
    let number = merged();
    let mut properties = MaybeUninit::<Properties12>::uninit();
    // SAFETY: the pointer is valid, and a success fills the structure.
    let properties = unsafe {
        ok(NET.get_properties.unwrap()(number, properties.as_mut_ptr()));
        properties.assume_init()
    };
    assert_eq!((properties.memory, properties.max_receives, properties.rail), (HOST, 8, -1));
    assert_eq!(
        (properties.devices.count, properties.devices.devices[..2].to_vec()),
        (2, vec![0, 1])
    );
    // SAFETY: names live as long as the process.
    let name = unsafe { core::ffi::CStr::from_ptr(properties.name) };
    assert_eq!(name.to_str(), Ok("soft0+soft1"));
}
