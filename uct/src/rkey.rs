//! Pointers to the memory of keys: `uct_rkey_ptr`.

use std::ffi::c_void;
#[cfg(feature = "shm")]
use std::sync::OnceLock;

use barewire::RemoteKey;
#[cfg(feature = "shm")]
use barewire::{error::PointerError, transport::shm::RemotePointer};

use crate::abi::RkeyBundle;
use crate::component::{Component, Unpacked};
#[cfg(feature = "shm")]
use crate::status::{INVALID_ADDR, UNREACHABLE};
use crate::status::{INVALID_PARAM, Status, UNSUPPORTED, guard};

/// The mapped memory of a key, once a program has asked for it. It stays where it is until the key
/// is released.
#[derive(Default)]
pub(crate) struct Pointer {
    #[cfg(feature = "shm")]
    memory: OnceLock<RemotePointer>,
}

impl Pointer {
    /// Returns the address in this process of one that the peer uses.
    #[cfg(feature = "shm")]
    fn locate(&self, key: &RemoteKey, remote: u64) -> Result<*mut c_void, Status> {
        let memory = if let Some(memory) = self.memory.get() {
            memory
        } else {
            let mapped = key.pointer().map_err(|error| {
                crate::log::diag(&error);
                match error {
                    PointerError::Unsupported(_) | PointerError::AccessDenied => UNSUPPORTED,
                    PointerError::Expired => INVALID_ADDR,
                    _ => UNREACHABLE,
                }
            })?;
            self.memory.get_or_init(|| mapped)
        };
        let place = memory.locate(remote, 1).ok_or(INVALID_ADDR)?;
        Ok(place.as_ptr().cast())
    }

    /// No key of this build leads to memory without an endpoint.
    #[cfg(not(feature = "shm"))]
    #[expect(clippy::unused_self, reason = "as with shared memory")]
    fn locate(&self, _: &RemoteKey, _: u64) -> Result<*mut c_void, Status> {
        Err(UNSUPPORTED)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_rkey_ptr(
    _component: *const Component,
    bundle: *const RkeyBundle,
    remote: u64,
    address: *mut *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: the bundle is null or one that `uct_rkey_unpack` filled.
        let handle = unsafe { bundle.as_ref() }.ok_or(INVALID_PARAM)?.handle;
        // SAFETY: as above; the handle refers to this type until it is released.
        let unpacked = unsafe { handle.cast::<Unpacked>().as_ref() }.ok_or(INVALID_PARAM)?;
        if address.is_null() {
            return Err(INVALID_PARAM);
        }
        let found = unpacked.pointer.locate(&unpacked.key, remote)?;
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *address = found };
        Ok(())
    })
}

#[cfg(all(test, feature = "shm"))]
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rigs"
)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::component::uct_rkey_release;
    use crate::status::OK;
    use crate::tests::pair::{Pair, Region};

    #[test]
    fn a_pointer_leads_to_the_peers_memory_over_shm_only() {
        let Some(pair) = Pair::over(c"shm", c"memory") else { return };
        let key = pair.key();
        let locate = |remote| unsafe {
            let mut found = null_mut();
            let status = uct_rkey_ptr(std::ptr::null(), key, remote, &raw mut found);
            (status, found.cast::<u64>())
        };
        let first = pair.remote.address();
        pair.remote.set_word(7);
        let (status, start) = locate(first);
        assert_eq!((status, unsafe { start.read_volatile() }), (OK, 7));
        unsafe { start.write_volatile(9) };
        assert_eq!(pair.remote.word(), 9);
        let end = first + Region::LENGTH as u64;
        let last = (OK, start.wrapping_byte_add(Region::LENGTH - 1));
        assert_eq!(locate(end - 1), last, "it stays mapped at one place");
        for outside in [first - 1, end, 0, u64::MAX] {
            assert_eq!(locate(outside), (INVALID_ADDR, null_mut()), "{outside:x}");
        }
        let nowhere = unsafe { uct_rkey_ptr(std::ptr::null(), key, first, null_mut()) };
        assert_eq!(nowhere, INVALID_PARAM);
        let Some(other) = Pair::over(c"self", c"memory") else { return };
        let mut found = null_mut();
        let lacking = unsafe {
            uct_rkey_ptr(std::ptr::null(), other.key(), other.remote.address(), &raw mut found)
        };
        assert_eq!((lacking, found), (UNSUPPORTED, null_mut()));
        let none = RkeyBundle { rkey: 0, handle: null_mut(), kind: null_mut() };
        assert_eq!(unsafe { uct_rkey_release(std::ptr::null(), &raw const none) }, INVALID_PARAM);
    }
}
