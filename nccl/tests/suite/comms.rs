//! A connected pair of comms of an `ncclNet_v12_t`, with registered memory.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::time::{Duration, Instant};

use nccl_net_barewire::abi::{self, Code, CommConfig, HOST, Net12, Virtual};

const DEADLINE: Duration = Duration::from_mins(1);

/// Bytes after the registered ones.
pub(crate) const BEYOND: usize = 4096;

pub(crate) type Any = *mut c_void;

fn ok(what: &str, code: Code) {
    assert_eq!(code, abi::SUCCESS, "{what}");
}

/// Initialises a network. Returns its context and devices, or the code with which `init` failed.
pub(crate) fn start(net: &Net12) -> Result<(usize, c_int), Code> {
    let (mut context, mut count) = (ptr::null_mut(), 0);
    let config = CommConfig { traffic_class: -1 };
    // SAFETY: the pointers are those of locals; a network takes no logger for its own.
    unsafe {
        match net.init.unwrap()(&raw mut context, 1, &raw const config, None, ptr::null()) {
            abi::SUCCESS => {}
            code => return Err(code),
        }
        ok("devices", net.devices.unwrap()(&raw mut count));
    }
    Ok((context as usize, count))
}

pub(crate) struct Comms {
    pub(crate) net: &'static Net12,
    pub(crate) sends: Any,
    pub(crate) receives: Any,
    listening: Any,
    /// The source and the target.
    pub(crate) memory: [*mut u8; 2],
    pub(crate) handles: [Any; 2],
    pub(crate) rails: usize,
    /// Registered bytes of each memory; [`BEYOND`] more follow.
    pub(crate) length: usize,
}

impl Comms {
    /// Connects two comms over one device, or over two that are merged, with `length` bytes of
    /// memory at each end.
    pub(crate) fn open(net: &'static Net12, rails: usize, length: usize) -> Self {
        let (context, _) = start(net).expect("init");
        let context = context as Any;
        let mut device = 0;
        if rails == 2 {
            let wanted = Virtual { count: 2, devices: [0, 1, 0, 0, 0, 0, 0, 0] };
            // SAFETY: both pointers are valid.
            let code = unsafe { net.make_virtual.unwrap()(&raw mut device, &raw const wanted) };
            ok("makeVDevice", code);
        }
        let mut handle = [0_u8; abi::HANDLE_BYTES];
        let [mut listening, mut sends, mut receives]: [Any; 3] = [ptr::null_mut(); 3];
        let place: Any = handle.as_mut_ptr().cast();
        // SAFETY: the handle has 128 bytes, and every pointer is that of a local.
        ok("listen", unsafe { net.listen.unwrap()(context, device, place, &raw mut listening) });
        let start = Instant::now();
        while sends.is_null() || receives.is_null() {
            let mut offload = ptr::null_mut();
            // SAFETY: as above; comms are asked for until they are there.
            unsafe {
                if sends.is_null() {
                    let connect = net.connect.unwrap();
                    let code = connect(context, device, place, &raw mut sends, &raw mut offload);
                    ok("connect", code);
                }
                if receives.is_null() {
                    let accept = net.accept.unwrap();
                    ok("accept", accept(listening, &raw mut receives, &raw mut offload));
                }
            }
            assert!(start.elapsed() < DEADLINE, "no connection");
            std::thread::yield_now();
        }
        // Leaked: a test that fails may leave devices that write to it.
        let memory = [(); 2].map(|()| Vec::leak(vec![0_u8; length + BEYOND]).as_mut_ptr());
        let mut handles = [ptr::null_mut(); 2];
        for ((memory, comm), handle) in memory.iter().zip([sends, receives]).zip(&mut handles) {
            // SAFETY: the memory is never freed.
            let code = unsafe { net.register.unwrap()(comm, memory.cast(), length, HOST, handle) };
            ok("regMr", code);
        }
        Self { net, sends, receives, listening, memory, handles, rails, length }
    }

    /// Frees the sending comm and its memory.
    pub(crate) fn free_sender(&mut self) {
        let (comm, handle) = (std::mem::replace(&mut self.sends, ptr::null_mut()), self.handles[0]);
        // SAFETY: each is freed once, the comm after its memory.
        unsafe {
            if !comm.is_null() {
                ok("deregMr", self.net.deregister.unwrap()(comm, handle));
                ok("closeSend", self.net.close_send.unwrap()(comm));
            }
        }
    }

    /// Frees the receiving comm and its memory.
    pub(crate) fn free_receiver(&mut self) {
        let comm = std::mem::replace(&mut self.receives, ptr::null_mut());
        // SAFETY: each is freed once, the comm after its memory.
        unsafe {
            if !comm.is_null() {
                ok("deregMr", self.net.deregister.unwrap()(comm, self.handles[1]));
                ok("closeRecv", self.net.close_receive.unwrap()(comm));
            }
        }
    }
}

impl Drop for Comms {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.free_sender();
        self.free_receiver();
        // SAFETY: freed once.
        ok("closeListen", unsafe { self.net.close_listen.unwrap()(self.listening) });
    }
}
