//! A pair of comms of an `ncclNet_v12_t`, as a channel of the suite.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::time::{Duration, Instant};

use nccl_net_barewire::abi::{self, Code, CommConfig, HOST, Net12, Virtual};

use crate::suite::{Buffer, Channel, Fault, SIZE};

const DEADLINE: Duration = Duration::from_mins(1);

type Any = *mut c_void;

fn ok(what: &str, code: Code) {
    assert_eq!(code, abi::SUCCESS, "{what}");
}

/// Returns whether a length has more than the 31 bits of the versions before 9.
fn is_long(length: usize) -> bool {
    length > c_int::MAX as usize
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
    net: &'static Net12,
    rails: usize,
    sends: Any,
    receives: Any,
    listening: Any,
    memory: [*mut u8; 2],
    handles: [Any; 2],
}

impl Comms {
    /// Connects two comms over one device, or over two that are merged.
    pub(crate) fn open(net: &'static Net12, rails: usize) -> Self {
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
        let memory = [(); 2].map(|()| Vec::leak(vec![0_u8; SIZE + 4096]).as_mut_ptr());
        let mut handles = [ptr::null_mut(); 2];
        for ((memory, comm), handle) in memory.iter().zip([sends, receives]).zip(&mut handles) {
            // SAFETY: the memory is never freed.
            let code = unsafe { net.register.unwrap()(comm, memory.cast(), SIZE, HOST, handle) };
            ok("regMr", code);
        }
        Self { net, rails, sends, receives, listening, memory, handles }
    }

    fn test(&self, request: u64) -> Result<Option<[c_int; 8]>, Fault> {
        let (mut done, mut sizes) = (0, [-1; 8]);
        // SAFETY: the request is of an open comm, and there is room for eight sizes.
        let code =
            unsafe { self.net.test.unwrap()(request as Any, &raw mut done, sizes.as_mut_ptr()) };
        match code {
            abi::SUCCESS => Ok((done != 0).then_some(sizes)),
            abi::INVALID_USAGE => Err(Fault::Refused),
            abi::INVALID_ARGUMENT => Err(Fault::UnknownRequest),
            abi::REMOTE_ERROR | abi::SYSTEM_ERROR => Err(Fault::Closed),
            code => Err(Fault::Other(format!("test returned {code}"))),
        }
    }
}

impl Channel for Comms {
    fn rails(&self) -> usize {
        self.rails
    }

    fn receive(&mut self, buffers: &[Buffer]) -> Result<Option<u64>, Fault> {
        let data = buffers.iter().map(|one| self.memory[1].wrapping_add(one.offset).cast());
        let data: Vec<Any> = data.collect();
        let lengths: Vec<usize> = buffers.iter().map(|one| one.length).collect();
        let tags: Vec<c_int> = buffers.iter().map(|one| one.tag as c_int).collect();
        let memories = vec![self.handles[1]; buffers.len()];
        let profiler: Vec<Any> = vec![ptr::null_mut(); buffers.len()];
        let mut request = ptr::null_mut();
        // SAFETY: the arrays have as many elements as there are buffers.
        let code = unsafe {
            self.net.receive.unwrap()(
                self.receives,
                buffers.len() as c_int,
                data.as_ptr(),
                lengths.as_ptr(),
                tags.as_ptr(),
                memories.as_ptr(),
                profiler.as_ptr(),
                &raw mut request,
            )
        };
        match code {
            abi::SUCCESS => Ok((!request.is_null()).then_some(request as u64)),
            abi::INVALID_ARGUMENT if !(1..=8).contains(&buffers.len()) => Err(Fault::Group),
            abi::INVALID_ARGUMENT => Err(Fault::OutOfBounds),
            // NVIDIA's adapters of the versions with sizes of 32 bits.
            abi::INTERNAL_ERROR if lengths.iter().any(|length| is_long(*length)) => {
                Err(Fault::OutOfBounds)
            }
            abi::REMOTE_ERROR | abi::SYSTEM_ERROR => Err(Fault::Closed),
            code => Err(Fault::Other(format!("irecv returned {code}"))),
        }
    }

    fn send(&mut self, offset: usize, length: usize, tag: u32) -> Result<Option<u64>, Fault> {
        let data: Any = self.memory[0].wrapping_add(offset).cast();
        let (none, mut request) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the comm and the memory are open.
        let code = unsafe {
            let send = self.net.send.unwrap();
            send(self.sends, data, length, tag as c_int, self.handles[0], none, &raw mut request)
        };
        match code {
            abi::SUCCESS => Ok((!request.is_null()).then_some(request as u64)),
            abi::INVALID_USAGE => Err(Fault::Overlong),
            abi::INVALID_ARGUMENT => Err(Fault::OutOfBounds),
            abi::INTERNAL_ERROR if is_long(length) => Err(Fault::OutOfBounds),
            abi::REMOTE_ERROR | abi::SYSTEM_ERROR => Err(Fault::Closed),
            code => Err(Fault::Other(format!("isend returned {code}"))),
        }
    }

    fn test_received(&mut self, request: u64) -> Result<Option<Vec<usize>>, Fault> {
        let sizes = self.test(request)?;
        // Those of buffers that the request does not have are not written.
        Ok(sizes.map(|sizes| {
            sizes.into_iter().take_while(|size| *size >= 0).map(|size| size as usize).collect()
        }))
    }

    fn test_sent(&mut self, request: u64) -> Result<Option<usize>, Fault> {
        Ok(self.test(request)?.map(|sizes| sizes[0].max(0) as usize))
    }

    fn fill_source(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SIZE, "outside of the memory");
        // SAFETY: the range lies in the memory.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory[0].add(offset), bytes.len());
        }
    }

    fn fill_target(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SIZE, "outside of the memory");
        // SAFETY: the range lies in the memory.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory[1].add(offset), bytes.len());
        }
    }

    fn target(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert!(offset + length <= SIZE + 4096, "outside of the memory");
        // SAFETY: the range lies in the memory, with what follows the registered part.
        unsafe {
            ptr::copy_nonoverlapping(self.memory[1].add(offset), bytes.as_mut_ptr(), length);
        }
        bytes
    }

    fn close_sender(&mut self) {
        let (comm, handle) = (std::mem::replace(&mut self.sends, ptr::null_mut()), self.handles[0]);
        // SAFETY: each is freed once, the comm after its memory.
        unsafe {
            if !comm.is_null() {
                ok("deregMr", self.net.deregister.unwrap()(comm, handle));
                ok("closeSend", self.net.close_send.unwrap()(comm));
            }
        }
    }

    fn close_receiver(&mut self) {
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
        self.close_sender();
        self.close_receiver();
        // SAFETY: freed once.
        ok("closeListen", unsafe { self.net.close_listen.unwrap()(self.listening) });
    }
}
