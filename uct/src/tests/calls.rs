//! Operations over `self`.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rig"
)]

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use super::{Rig, append, iov, pack, unpack};
use crate::abi::{AllocatedMemory, Completion, Iov, PendingReq, RkeyBundle};
use crate::status::{BUSY, OK};
use crate::{component, dispatch, iface, md, memory};

#[test]
fn messages_arrive_as_they_were_sent() {
    let Some(rig) = Rig::of_self() else { return };
    let ep = rig.endpoint(Some(&rig));
    let (ops, mut received) = (rig.ops(), Vec::<Vec<u8>>::new());
    unsafe {
        let argument = (&raw mut received).cast();
        assert_eq!(iface::uct_iface_set_am_handler(rig.iface, 5, Some(append), argument, 0), OK);
        let header = u64::from_ne_bytes(*b"12345678");
        assert_eq!((ops.ep_am_short)(ep, 5, header, b"short".as_ptr(), 5), OK);
        assert_eq!((ops.ep_am_short)(ep, 5, header, null(), 0), OK);
        let mut text: &[u8] = b"buffered";
        let argument = (&raw mut text).cast();
        assert_eq!((ops.ep_am_bcopy)(ep, 5, Some(pack), argument, 0), 8);
        // Two of every three bytes.
        let pieces =
            [iov(b"a", null_mut(), 0, 1), Iov { length: 2, ..iov(b"bc-de-fg", null_mut(), 3, 3) }];
        assert_eq!((ops.ep_am_short_iov)(ep, 5, pieces.as_ptr(), 2), OK);
        rig.progress();
        // Without a handler, messages are dropped.
        assert_eq!(iface::uct_iface_set_am_handler(rig.iface, 5, None, null_mut(), 0), OK);
        assert_eq!((ops.ep_am_short)(ep, 5, header, null(), 0), OK);
        rig.progress();
        dispatch::uct_ep_destroy(ep);
    }
    let expected: [&[u8]; 4] = [b"12345678short", b"12345678", b"buffered", b"abcdefg"];
    assert_eq!(received, expected);
}

#[test]
fn memory_is_written_and_read() {
    let Some(rig) = Rig::of_self() else { return };
    let ep = rig.endpoint(Some(&rig));
    let ops = rig.ops();
    unsafe {
        let mut memory: AllocatedMemory = MaybeUninit::zeroed().assume_init();
        let allocated =
            memory::uct_iface_mem_alloc(rig.iface, 4000, 0x3e0, null(), &raw mut memory);
        assert_eq!((allocated, memory.length), (OK, 4000));
        memory.address.write_bytes(0, 4000);
        let mut packed = [0_u8; 22];
        assert_eq!(md::uct_md_mkey_pack(rig.md, memory.memh.cast(), packed.as_mut_ptr()), OK);
        let mut key: RkeyBundle = MaybeUninit::zeroed().assume_init();
        let unpacked = component::uct_rkey_unpack(rig.component, packed.as_ptr(), &raw mut key);
        assert_eq!(unpacked, OK);
        let (at, rkey) = (memory.address as u64, key.rkey);

        assert_eq!((ops.ep_put_short)(ep, b"short".as_ptr(), 5, at, rkey), OK);
        let mut text: &[u8] = b"buffered";
        let put = (ops.ep_put_bcopy)(ep, Some(pack), (&raw mut text).cast(), at + 5, rkey);
        assert_eq!(put, 8);
        let own = std::slice::from_raw_parts(memory.address, 13);
        let copy = [Iov { length: 3, ..iov(own, memory.memh, 5, 2) }];
        // The completion counts nothing that is done at once, and may have no function.
        let mut done = Completion { func: None, count: 1, status: OK };
        let put = (ops.ep_put_zcopy)(ep, copy.as_ptr(), 1, at + 100, rkey, &raw mut done);
        assert_eq!((put, done.count), (OK, 1));
        assert_eq!((ops.ep_atomic64_post)(ep, 0, 7, at + 200, rkey), OK);
        assert_eq!((ops.ep_atomic32_post)(ep, 2, 8, at + 200, rkey), OK);
        assert_eq!((ops.ep_flush)(ep, 0, null_mut()), OK);
        assert_eq!(((ops.iface_flush)(rig.iface, 0, &raw mut done), done.count), (OK, 1));
        let all = std::slice::from_raw_parts(memory.address, 4000);
        assert_eq!(&all[..13], b"shortbuffered");
        assert_eq!((&all[100..106], all[200]), (&b"shobuf"[..], 15));

        let (mut word, mut half, mut short) = (0_u64, 0_u32, [0_u8; 5]);
        let fetched =
            (ops.ep_atomic64_fetch)(ep, 0, 5, &raw mut word, at + 200, rkey, &raw mut done);
        assert_eq!((fetched, word, done.count), (OK, 15, 1));
        let (compare, swap) = (20, 0x1_0000_0000);
        let swapped =
            (ops.ep_atomic_cswap64)(ep, compare, swap, at + 200, rkey, &raw mut word, null_mut());
        assert_eq!((swapped, word), (OK, 20));
        let swapped = (ops.ep_atomic32_fetch)(ep, 4, 9, &raw mut half, at + 204, rkey, null_mut());
        assert_eq!((swapped, half), (OK, 1));
        assert_eq!((ops.ep_get_short)(ep, short.as_mut_ptr(), 5, at, rkey), OK);
        assert_eq!(&short, b"short");
        let mut received = Vec::<u8>::new();
        let argument = (&raw mut received).cast();
        let got = (ops.ep_get_bcopy)(ep, Some(unpack), argument, 8, at + 5, rkey, &raw mut done);
        assert_eq!((got, done.count, &*received), (OK, 1, &b"buffered"[..]));

        // An endpoint with resources accepts no pending requests.
        let mut request = PendingReq { func: None, private: [0; 40] };
        assert_eq!((ops.ep_pending_add)(ep, &raw mut request, 0), BUSY);
        assert_eq!(component::uct_rkey_release(rig.component, &raw const key), OK);
        memory::uct_iface_mem_free(&raw const memory);
        dispatch::uct_ep_destroy(ep);
    }
}
