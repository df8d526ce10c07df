//! The operations of `rc_mlx5` and `shm` that programs call most, compiled for one transport each.
//! What they do not cover is left to those for every transport.

use std::ffi::c_uint;

use barewire::capability::{AmShort, PutShort, RemoteMemory};
use barewire::transport::Transport;
use barewire::transport::rc_mlx5::RcMlx5;
use barewire::transport::shm::Shm;
use barewire::{Memory, Posted, TransportId};

use crate::abi::{Completion, IfaceOps, Iov, Rkey};
use crate::endpoint::Ep;
use crate::ops::OPS;
use crate::post;
use crate::status::{INPROGRESS, Status, of_posted, of_result};

/// Returns the table of operations for interfaces of a transport.
pub(crate) const fn table(transport: TransportId) -> IfaceOps {
    match transport {
        TransportId::RcMlx5 => IfaceOps {
            ep_put_short: put_short::<RcMlx5>,
            ep_put_zcopy: put_zcopy,
            ep_am_short: am_short::<RcMlx5>,
            ..OPS
        },
        TransportId::Shm => {
            IfaceOps { ep_put_short: put_short::<Shm>, ep_am_short: am_short::<Shm>, ..OPS }
        }
        _ => OPS,
    }
}

/// Bytes of the short operations that are compiled in: a word.
const WORD: c_uint = 8;

/// Returns the transport's own endpoint.
///
/// # Safety
/// `ep` is an open endpoint of the transport.
#[inline(always)]
unsafe fn endpoint<'a, T: Transport>(ep: *const Ep) -> &'a T::Endpoint {
    // SAFETY: contract of this function.
    unsafe { (*ep).endpoint.as_static::<T>().unwrap_unchecked() }
}

/// Returns the transport's own key.
///
/// # Safety
/// As for [`post::key`].
#[inline(always)]
unsafe fn key<'a, T: Transport>(rkey: Rkey) -> Option<&'a T::RemoteKey> {
    // SAFETY: contract of this function.
    unsafe { post::key(rkey) }?.as_static::<T>()
}

/// Returns the word of a short operation; `None` if it is not one, or there is none.
///
/// # Safety
/// `buffer` is null, or valid for reads of `length` bytes.
#[inline(always)]
unsafe fn word<'a>(buffer: *const u8, length: c_uint) -> Option<&'a [u8; WORD as usize]> {
    if length != WORD {
        return None;
    }
    // SAFETY: contract of this function.
    unsafe { buffer.cast::<[u8; WORD as usize]>().as_ref() }
}

unsafe extern "C" fn put_short<T>(
    ep: *mut Ep,
    buffer: *const u8,
    length: c_uint,
    remote: u64,
    rkey: Rkey,
) -> Status
where
    T: Transport<Endpoint: PutShort + RemoteMemory<Key = <T as Transport>::RemoteKey>>,
{
    // SAFETY: the contract of the operation; only endpoints of the transport have it.
    unsafe {
        let (Some(word), Some(key)) = (word(buffer, length), key::<T>(rkey)) else {
            return post::put_short(ep, buffer, length, remote, rkey);
        };
        of_result(endpoint::<T>(ep).put_short(word, remote, key))
    }
}

unsafe extern "C" fn am_short<T: Transport<Endpoint: AmShort>>(
    ep: *mut Ep,
    id: u8,
    header: u64,
    payload: *const u8,
    length: c_uint,
) -> Status {
    // SAFETY: as above.
    unsafe {
        let Some(word) = word(payload, length) else {
            return post::am_short(ep, id, header, payload, length);
        };
        of_result(endpoint::<T>(ep).am_short(id, header, word))
    }
}

unsafe extern "C" fn put_zcopy(
    ep: *mut Ep,
    iov: *const Iov,
    count: usize,
    remote: u64,
    rkey: Rkey,
    completion: *mut Completion,
) -> Status {
    // SAFETY: as above. The array has `count` entries, whose handles are of registered memory.
    unsafe {
        if count == 1
            && let Some(entry) = iov.as_ref()
            && entry.count == 1
            && let Some(memory) = entry.memh.cast::<Memory>().as_ref()
            && let Some(memory) = memory.as_static::<RcMlx5>()
            && let Some(slice) = memory.slice_at(entry.buffer as u64, entry.length)
            && let Some(key) = key::<RcMlx5>(rkey)
            && let Some(counted) = post::counted(completion)
        {
            let posted = endpoint::<RcMlx5>(ep).put_zcopy_here(&slice, remote, key, Some(&counted));
            if posted == Ok(Posted::InProgress) {
                (*completion).count = (*completion).count.wrapping_sub(1);
                return INPROGRESS;
            }
            return of_posted(posted);
        }
        post::put_zcopy(ep, iov, count, remote, rkey, completion)
    }
}
