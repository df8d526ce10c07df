//! Messages that a program keeps.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rig"
)]

use std::ffi::{c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::slice::from_raw_parts;
use std::time::{Duration, Instant};

use super::{HEADROOM, Rig, connect};
use crate::status::{INPROGRESS, NO_RESOURCE, OK};
use crate::{dispatch, iface};

const DEADLINE: Duration = Duration::from_mins(1);
/// More messages than these interfaces let a program keep in descriptors.
const COUNT: usize = 1000;

/// A message that the program keeps.
enum Held {
    /// In its descriptor, by the address and length of the data.
    Kept(*mut u8, usize),
    Copied(Vec<u8>),
}

impl Held {
    fn data(&self) -> &[u8] {
        match self {
            Self::Kept(data, length) => unsafe { from_raw_parts(*data, *length) },
            Self::Copied(data) => data,
        }
    }

    /// As `uct_iface_release_desc` does.
    fn release(self) {
        type Release = unsafe extern "C" fn(*mut c_void, *mut c_void);
        let Self::Kept(data, _) = self else { return };
        unsafe {
            let start = data.sub(HEADROOM);
            assert_eq!(from_raw_parts(start, HEADROOM), [0x5a; HEADROOM]);
            let pointer = NonNull::new(start).unwrap().cast::<*mut c_void>();
            let descriptor = pointer.sub(1).read_unaligned();
            (descriptor.cast::<Release>().read())(descriptor, start.cast());
        }
    }
}

unsafe extern "C" fn hoard(held: *mut c_void, data: *mut u8, length: usize, flags: c_uint) -> i8 {
    unsafe {
        let held = &mut *held.cast::<Vec<Held>>();
        if flags & 1 == 0 {
            held.push(Held::Copied(from_raw_parts(data, length).to_vec()));
            return OK;
        }
        data.sub(HEADROOM).write_bytes(0x5a, HEADROOM);
        held.push(Held::Kept(data, length));
        INPROGRESS
    }
}

/// A program keeps everything: first in descriptors, then in copies. Nothing is lost, and descriptors
/// can be released in any order, also after the interface is closed.
#[test]
fn a_program_that_hoards_gets_everything() {
    for (transport, device) in [(c"self", c"memory"), (c"ud_mlx5", c"soft0:1")] {
        let (Some(rig), Some(other)) = (Rig::over(transport, device), Rig::over(transport, device))
        else {
            return;
        };
        let is_self = transport == c"self";
        let receiver = if is_self { &rig } else { &other };
        let mut held = Vec::<Held>::new();
        unsafe {
            let argument = (&raw mut held).cast();
            let set = iface::uct_iface_set_am_handler;
            assert_eq!(set(receiver.iface, 1, Some(hoard), argument, 0), OK);
            let (ep, end) = if is_self {
                (rig.endpoint(Some(&rig)), null_mut())
            } else {
                let (ep, end) = (rig.endpoint(None), other.endpoint(None));
                connect(ep, &other, end);
                connect(end, &rig, ep);
                (ep, end)
            };
            let limit = Instant::now() + DEADLINE;
            for round in 0..2 {
                for number in 0..COUNT as u64 {
                    let send = || (rig.ops().ep_am_short)(ep, 1, number, b"payload".as_ptr(), 7);
                    let mut sent = send();
                    while sent == NO_RESOURCE {
                        rig.progress();
                        other.progress();
                        assert!(Instant::now() < limit, "{transport:?} {round}: {number}");
                        sent = send();
                    }
                    assert_eq!(sent, OK);
                }
                while held.len() < COUNT {
                    rig.progress();
                    other.progress();
                    assert!(Instant::now() < limit, "{transport:?} {round}: {}", held.len());
                }
                for (number, held) in (0_u64..).zip(&held) {
                    let expected = [&number.to_ne_bytes()[..], b"payload"].concat();
                    assert_eq!(held.data(), expected, "{transport:?} {round}");
                }
                let kept = held.iter().filter(|held| matches!(held, Held::Kept(..))).count();
                assert!((10..COUNT).contains(&kept), "{transport:?} {round}: {kept}");
                if round == 0 {
                    held.drain(..).rev().for_each(Held::release);
                }
            }
            dispatch::uct_ep_destroy(ep);
            dispatch::uct_ep_destroy(end);
        }
        drop((rig, other));
        held.into_iter().for_each(Held::release);
    }
}
