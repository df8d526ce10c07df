//! Two interfaces of one transport, with a connected endpoint, and memory of the second.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rigs"
)]

use std::ffi::CStr;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{NonNull, null, null_mut};
use std::time::{Duration, Instant};

use super::{Rig, connect};
use crate::abi::{AllocatedMemory, Completion, IfaceAttr, Iov, RkeyBundle, iface_flag};
use crate::endpoint::Ep;
use crate::status::{INPROGRESS, NO_RESOURCE, OK};
use crate::{component, dispatch, md, memory};

const DEADLINE: Duration = Duration::from_mins(1);

/// The transports of a machine without devices, and a device of each.
pub(super) const TRANSPORTS: [(&CStr, &CStr); 7] = [
    (c"self", c"memory"),
    (c"shm", c"memory"),
    (c"cma", c"memory"),
    (c"tcp", c"lo"),
    (c"rc_mlx5", c"soft0:1"),
    (c"dc_mlx5", c"soft0:1"),
    (c"ud_mlx5", c"soft0:1"),
];

pub(super) fn attributes(rig: &Rig) -> IfaceAttr {
    let mut attr = MaybeUninit::uninit();
    unsafe {
        assert_eq!(dispatch::uct_iface_query(rig.iface, attr.as_mut_ptr()), OK);
        attr.assume_init()
    }
}

/// Memory that an interface allocated.
pub(crate) struct Region(AllocatedMemory);

impl Region {
    pub(crate) const LENGTH: usize = 1 << 20;

    fn new(rig: &Rig) -> Self {
        let mut found = MaybeUninit::uninit();
        let allocated = unsafe {
            memory::uct_iface_mem_alloc(rig.iface, Self::LENGTH, 0x3e0, null(), found.as_mut_ptr())
        };
        assert_eq!(allocated, OK);
        Self(unsafe { found.assume_init() })
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.address as u64
    }

    pub(super) fn fill(&self, seed: u8) {
        for at in 0..Self::LENGTH {
            let byte = (at as u8).wrapping_mul(7).wrapping_add((at >> 8) as u8).wrapping_add(seed);
            unsafe { self.0.address.add(at).write_volatile(byte) };
        }
    }

    pub(super) fn read(&self, length: usize) -> Vec<u8> {
        (0..length).map(|at| unsafe { self.0.address.add(at).read_volatile() }).collect()
    }

    pub(crate) fn word(&self) -> u64 {
        u64::from_ne_bytes(self.read(8).try_into().unwrap())
    }

    pub(crate) fn set_word(&self, word: u64) {
        let start = NonNull::new(self.0.address).unwrap().cast::<u64>();
        unsafe { start.write_volatile(word) };
    }

    /// `count` pieces of `length` bytes from the start.
    pub(super) fn pieces(&self, length: usize, count: usize) -> Vec<Iov> {
        let piece = |at| Iov {
            buffer: self.0.address.wrapping_add(at * length),
            length,
            memh: self.0.memh,
            stride: 0,
            count: 1,
        };
        (0..count).map(piece).collect()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        unsafe { memory::uct_iface_mem_free(&raw const self.0) };
    }
}

pub(crate) struct Pair {
    pub(super) ep: *mut Ep,
    end: *mut Ep,
    key: RkeyBundle,
    pub(super) local: Region,
    pub(crate) remote: Region,
    pub(super) own: Rig,
    /// `None` if the endpoint leads to its own interface.
    other: Option<Rig>,
}

impl Pair {
    /// `None` without libucs.
    pub(crate) fn over(transport: &'static CStr, device: &'static CStr) -> Option<Self> {
        let own = Rig::over(transport, device)?;
        let other = (transport != c"self").then(|| Rig::over(transport, device).unwrap());
        let peer = other.as_ref().unwrap_or(&own);
        let to_interfaces = attributes(&own).cap.flags & iface_flag::CONNECT_TO_IFACE != 0;
        let (ep, end) = if to_interfaces {
            (own.endpoint(Some(peer)), null_mut())
        } else {
            let (ep, end) = (own.endpoint(None), peer.endpoint(None));
            connect(ep, peer, end);
            connect(end, &own, ep);
            (ep, end)
        };
        let (local, remote) = (Region::new(&own), Region::new(peer));
        let mut packed = [0_u8; 256];
        let key = unsafe {
            let mut key: RkeyBundle = std::mem::zeroed();
            let memh = remote.0.memh.cast();
            assert_eq!(md::uct_md_mkey_pack(peer.md, memh, packed.as_mut_ptr()), OK);
            let unpacked = component::uct_rkey_unpack(own.component, packed.as_ptr(), &raw mut key);
            assert_eq!(unpacked, OK);
            key
        };
        Some(Self { ep, end, key, local, remote, own, other })
    }

    pub(super) fn peer(&self) -> &Rig {
        self.other.as_ref().unwrap_or(&self.own)
    }

    pub(crate) fn key(&self) -> *const RkeyBundle {
        &raw const self.key
    }

    pub(super) fn rkey(&self) -> usize {
        self.key.rkey
    }

    pub(super) fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let limit = Instant::now() + DEADLINE;
        while !done() {
            self.own.progress();
            self.peer().progress();
            assert!(Instant::now() < limit, "{what} does not end");
        }
    }

    /// Posts once there are resources, and waits for the operation. Returns its status.
    pub(super) fn post(&self, what: &str, mut post: impl FnMut(*mut Completion) -> i8) -> i8 {
        let mut done = Completion { func: None, count: 1, status: OK };
        let record = NonNull::from(&mut done).as_ptr();
        let mut posted = NO_RESOURCE;
        self.until(what, || {
            posted = post(record);
            posted != NO_RESOURCE
        });
        if posted != INPROGRESS {
            return posted;
        }
        self.until(what, || unsafe { (&raw const (*record).count).read_volatile() } == 0);
        unsafe { (*record).status }
    }

    /// Waits until the peer's memory has everything.
    pub(super) fn flush(&self, what: &str) {
        let flush = self.own.ops().ep_flush;
        // UCT_FLUSH_FLAG_REMOTE
        assert_eq!(self.post(what, |done| unsafe { flush(self.ep, 2, done) }), OK, "{what}: flush");
    }

    /// Ends the peer: its endpoint, its memory and its interface. Returns the endpoint to it, the
    /// interface of this side, and its memory.
    pub(super) fn end_peer(self) -> (*mut Ep, Rig, Region) {
        let this = ManuallyDrop::new(self);
        unsafe {
            component::uct_rkey_release(this.own.component, &raw const this.key);
            dispatch::uct_ep_destroy(this.end);
            drop(std::ptr::read(&raw const this.remote));
            drop(std::ptr::read(&raw const this.other));
            let (local, own) = (&raw const this.local, &raw const this.own);
            (this.ep, std::ptr::read(own), std::ptr::read(local))
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        unsafe {
            component::uct_rkey_release(self.own.component, &raw const self.key);
            dispatch::uct_ep_destroy(self.ep);
            dispatch::uct_ep_destroy(self.end);
        }
    }
}
