//! Receive WQEs of several segments, and shared receive queues of both topologies: their bytes, and
//! every order of completion.

use crate::plain;

use std::sync::Arc;

use barewire_mlx5::DataSegment;
use barewire_mlx5::queue::receive::{ReceiveParts, ReceiveQueue};
use barewire_mlx5::queue::shared_receive::{
    Cyclic, List, SharedReceiveParts, SharedReceiveQueue, Topology, wqe_bytes,
};
use plain::Shared;

type Unit = [u8; 16];

const UNTOUCHED: Unit = [0xee; 16];
const END: Unit = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn segment(number: u8) -> DataSegment {
    DataSegment::new(u64::from(number), u32::from(number), 3)
}

fn bytes(number: u8) -> Unit {
    [0, 0, 0, number, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, number]
}

#[test]
fn receive_wqes_of_several_segments_end_with_the_invalid_key() {
    let ring = Shared::new(UNTOUCHED, 4 * 2);
    // SAFETY: the ring has two WQEs of four segments, `keep` keeps it alive, and only the queue
    // writes it.
    let mut queue = unsafe {
        ReceiveQueue::<4>::from_parts(ReceiveParts {
            ring: ring.start().cast(),
            entries: 2,
            doorbell_record: ring.record(),
            keep: ring.clone(),
        })
    };
    let empty = DataSegment::new(9, 0, 9);
    assert!(!queue.push_scatter(&[empty, empty]), "2 GiB to the device");
    assert!(!queue.push_scatter(&[segment(1); 5]), "more than there is room for");
    assert_eq!(queue.room(), 2, "what is refused takes no room");
    assert!(queue.push_scatter(&[segment(1), empty, segment(2)]));
    assert!(queue.push_scatter(&[segment(1), segment(2), segment(3), segment(4)]));
    assert!(!queue.push(segment(1)), "full");
    assert_eq!([0, 1, 2].map(|at| ring.get(at)), [bytes(1), bytes(2), END]);
    assert_eq!([4, 5, 6, 7].map(|at| ring.get(at)), [bytes(1), bytes(2), bytes(3), bytes(4)]);
    queue.reap();
    assert!(queue.push(segment(5)));
    assert_eq!([0, 1].map(|at| ring.get(at)), [bytes(5), END]);
    assert_eq!(ring.published(), 0);
    queue.publish();
    assert_eq!(ring.published(), 3);
}

fn shared<T: Topology>(
    entries: u32,
    segments: usize,
) -> (SharedReceiveQueue<T>, Arc<Shared<Unit>>) {
    let ring = Shared::new(UNTOUCHED, entries as usize * wqe_bytes(segments) / 16);
    // SAFETY: the ring has the required size, `keep` keeps it alive, and only the queue writes it.
    let queue = unsafe {
        SharedReceiveQueue::from_parts(SharedReceiveParts {
            ring: ring.start().cast(),
            entries,
            segments,
            doorbell_record: ring.record(),
            keep: ring.clone(),
        })
    };
    (queue, ring)
}

fn header(next: u8) -> Unit {
    [0, 0, 0, next, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

#[test]
fn strides_are_powers_of_two() {
    assert_eq!([1, 2, 3, 4, 7, 8].map(wqe_bytes), [32, 64, 64, 128, 128, 256]);
}

#[test]
fn wqes_of_a_list_lead_to_each_other() {
    let (mut queue, ring) = shared::<List>(4, 1);
    assert_eq!([0, 2, 4, 6].map(|at| ring.get(at)), [header(1), header(2), header(3), header(0)]);
    assert_eq!([1, 2, 3].map(|number| queue.push(&[segment(number)])), [Some(0), Some(1), Some(2)]);
    assert_eq!((queue.push(&[segment(4)]), queue.room()), (None, 0), "one stays behind");
    assert_eq!([1, 3, 5].map(|at| ring.get(at)), [bytes(1), bytes(2), bytes(3)]);
    queue.publish();
    assert_eq!(ring.published(), 3);
    // Out of order, as messages of several queue pairs complete: the list goes 3, 2, 0.
    assert_eq!([2, 0].map(|index| queue.release(index)), [Some(2), Some(0)]);
    assert_eq!([ring.get(6), ring.get(4)], [header(2), header(0)]);
    assert_eq!([5, 6, 7].map(|number| queue.push(&[segment(number)])), [Some(3), Some(2), None]);
    assert_eq!([ring.get(7), ring.get(5)], [bytes(5), bytes(6)]);
    queue.publish();
    assert_eq!(ring.published(), 5);
}

#[test]
fn a_cyclic_queue_waits_for_the_oldest() {
    let (mut queue, ring) = shared::<Cyclic>(4, 1);
    assert!((0..4).all(|index| queue.push(&[segment(1)]) == Some(index)));
    assert_eq!(queue.push(&[segment(1)]), None);
    assert_eq!(
        (queue.release(2), queue.room()),
        (Some(2), 0),
        "the device is not through with what is before"
    );
    assert_eq!((queue.release(0), queue.room()), (Some(0), 1));
    assert_eq!((queue.release(1), queue.room()), (Some(1), 3));
    assert_eq!(queue.push(&[segment(7)]), Some(0));
    assert_eq!(ring.get(1), bytes(7));
    // The device counts beyond the size of the ring.
    assert_eq!(queue.release(4), Some(0));
}

#[test]
fn a_completion_of_what_was_never_posted_changes_nothing() {
    fn check<T: Topology>() {
        let (mut queue, _ring) = shared::<T>(4, 3);
        assert_eq!(queue.segments(), 3);
        let room = queue.room();
        assert_eq!((queue.release(0), queue.release(0xffff)), (None, None));
        assert_eq!(queue.push(&[segment(1); 4]), None, "more than there is room for");
        assert_eq!(queue.push(&[]), None, "no buffer at all");
        assert_eq!(queue.push(&[segment(1); 3]), Some(0));
        assert_eq!((queue.release(0), queue.release(0)), (Some(0), None), "twice");
        assert_eq!(queue.room(), room);
    }
    check::<List>();
    check::<Cyclic>();
}

/// The WQE of the previous lap is posted again without a write, as long as its entry is next.
#[test]
fn a_wqe_is_posted_again_in_its_turn() {
    let ring = Shared::new(UNTOUCHED, 4);
    // SAFETY: the ring has four WQEs of one segment, `keep` keeps it alive, and only the queue
    // writes it.
    let mut queue = unsafe {
        ReceiveQueue::<1>::from_parts(ReceiveParts {
            ring: ring.start().cast(),
            entries: 4,
            doorbell_record: ring.record(),
            keep: ring.clone(),
        })
    };
    for number in 1..=4 {
        assert!(queue.push(segment(number)));
    }
    assert!(queue.push_again(0) && queue.push_again(1));
    assert!(!queue.push_again(3), "2 was not given back");
    queue.reap();
    assert!(queue.push(segment(9)));
    assert!(queue.push_again(3) && queue.push_again(4));
    queue.publish();
    assert_eq!(ring.published(), 9);
    assert_eq!([0, 1, 2, 3].map(|at| ring.get(at)), [1, 2, 9, 4].map(bytes));
    // Copied to an entry that is not its own, and to its own.
    queue.push_copy(2);
    assert_eq!(ring.get(1), bytes(9));
    queue.push_copy(10);
    queue.publish();
    assert_eq!(ring.published(), 11);
    assert_eq!([0, 1, 2, 3].map(|at| ring.get(at)), [1, 9, 9, 4].map(bytes));
}
