//! A pair of comms as a channel of the suite.

use core::ffi::c_int;
use core::ptr;

use nccl_net_barewire::abi;

use crate::comms::{Any, BEYOND, Comms};
use crate::suite::{Buffer, Channel, Fault};

/// Returns whether a length has more than the 31 bits of the versions before 9.
fn is_long(length: usize) -> bool {
    length > c_int::MAX as usize
}

impl Comms {
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
        assert!(offset + bytes.len() <= self.length, "outside of the memory");
        // SAFETY: the range lies in the memory.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory[0].add(offset), bytes.len());
        }
    }

    fn fill_target(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length, "outside of the memory");
        // SAFETY: the range lies in the memory.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory[1].add(offset), bytes.len());
        }
    }

    fn target(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert!(offset + length <= self.length + BEYOND, "outside of the memory");
        // SAFETY: the range lies in the memory, with what follows the registered part.
        unsafe {
            ptr::copy_nonoverlapping(self.memory[1].add(offset), bytes.as_mut_ptr(), length);
        }
        bytes
    }

    fn close_sender(&mut self) {
        self.free_sender();
    }

    fn close_receiver(&mut self) {
        self.free_receiver();
    }
}
