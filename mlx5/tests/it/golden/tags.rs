//! Compares operations on a list of tags with those of libmlx5 1.24.44 (Debian 12), by
//! `ibv_post_srq_ops` into a ring filled with `ee`, and sends with a tag with sends of the same
//! bytes.

use barewire_mlx5::layouts::be::{Be32, Be64};
use barewire_mlx5::layouts::tag::{RendezvousHeader, TagHeader, TagOpcode};
use barewire_mlx5::layouts::wqe::{TagFlags, TagSegment};
use barewire_mlx5::queue::send::MAX_SEGMENTS;
use barewire_mlx5::request::{
    AppendTag, ChangeTags, Inline, MAX_RENDEZVOUS_DATA, MAX_TAGGED_INLINE, Nop, Segments, Send,
    SendRendezvous, SendTagged,
};
use barewire_mlx5::{ControlFlags, DataSegment, PostError};

use super::check;
use crate::replay::bytes;
use crate::replay::memory::PlainQueue;

const QPN: u32 = 0x2f_277b;
const TAG: u64 = 0x1122_3344_5566_7788;
const NO_FLAGS: ControlFlags = ControlFlags::empty();
const HEADER: TagHeader = TagHeader::new(TagOpcode::Eager, 0x0a0b_0c0d, TAG);

fn buffer() -> DataSegment {
    DataSegment::new(0x0102_0304_0506_0708, 0x40, 0x090a_0b0c)
}

#[test]
fn list_operations_are_byte_for_byte_libmlx5s() {
    let mut plain = PlainQueue::new(QPN, 16, 2);
    plain.queue.post(Nop, NO_FLAGS).unwrap();
    let done = TagFlags::COMPLETION;
    let appends = [
        (
            TagSegment::append(2, TAG, u64::MAX, done),
            "000001282f277b04000000000000000010800002eeeeeeeeeeeeeeeeeeeeeeee1122334455667788ffffffffffffffff",
        ),
        (
            TagSegment::append(3, TAG + 1, 0xffff, done).with_software_count(0x1234),
            "000002282f277b04000000000000000010c00003eeee1234eeeeeeeeeeeeeeee1122334455667789000000000000ffff",
        ),
        (
            TagSegment::append(4, TAG + 2, 0, TagFlags::empty()),
            "000003282f277b04000000000000000010000004eeeeeeeeeeeeeeeeeeeeeeee112233445566778a0000000000000000",
        ),
    ];
    for (segment, text) in appends {
        plain.reap();
        // libmlx5 requests the completion of a list operation in the segment only.
        plain
            .queue
            .post(AppendTag { entry: &segment, buffer: buffer() }, ControlFlags::empty())
            .unwrap();
        let mut wanted = bytes(text).unwrap();
        wanted.extend([0, 0, 0, 0x40, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8]);
        compare(&plain, &wanted);
    }
    let changes = [
        (
            TagSegment::nop(done).with_software_count(0x2345),
            "000004282f277b03000000000000000000c0eeeeeeee2345eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee",
        ),
        (
            TagSegment::remove(2, done).with_software_count(5),
            "000005282f277b03000000000000000020c00002eeee0005eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee",
        ),
    ];
    for (segment, text) in changes {
        plain.reap();
        plain.queue.post(ChangeTags(&segment), ControlFlags::empty()).unwrap();
        compare(&plain, &bytes(text).unwrap());
    }
}

/// The last WQE, apart from the flag that the queue sets to free its room.
fn compare(plain: &PlainQueue, wanted: &[u8]) {
    let mut written = plain.posted();
    written[11] &= !ControlFlags::COMPLETION.bits();
    check("list operation", &written[..wanted.len()], wanted);
}

#[test]
fn an_empty_buffer_is_named_by_the_invalid_key() {
    let mut plain = PlainQueue::new(QPN, 16, 2);
    let segment = TagSegment::append(1, TAG, u64::MAX, TagFlags::COMPLETION);
    plain
        .queue
        .post(
            AppendTag { entry: &segment, buffer: DataSegment::new(7, 0, 9) },
            ControlFlags::empty(),
        )
        .unwrap();
    assert_eq!(plain.posted()[48..64], [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn tagged_sends_carry_the_header_in_front_of_the_data() {
    let data: [u8; MAX_TAGGED_INLINE + 1] = std::array::from_fn(|at| at as u8);
    let header = HEADER;
    let mut carried = vec![3, 0, 0, 0, 10, 11, 12, 13];
    carried.extend(TAG.to_be_bytes());
    for length in 0..=MAX_TAGGED_INLINE {
        let (mut ours, mut theirs) = (PlainQueue::new(QPN, 16, 2), PlainQueue::new(QPN, 16, 2));
        ours.queue
            .post(SendTagged { header: &header, payload: Inline(&data[..length]) }, NO_FLAGS)
            .unwrap();
        let message = [&carried[..], &data[..length]].concat();
        theirs.queue.post(Send(Inline(&message)), NO_FLAGS).unwrap();
        assert_eq!(ours.posted(), theirs.posted(), "{length} bytes");
        assert_eq!(ours.register(), theirs.register(), "{length} bytes");
    }
    let mut plain = PlainQueue::new(QPN, 16, 2);
    let too_long =
        plain.queue.post(SendTagged { header: &header, payload: Inline(&data) }, NO_FLAGS);
    assert_eq!(too_long, Err(PostError::TooLong));

    let mut wanted = vec![0x80, 0, 0, 16];
    wanted.extend(&carried);
    wanted.resize(32, 0);
    wanted.extend([0, 0, 0, 0x40, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8]);
    plain
        .queue
        .post(
            SendTagged {
                header: &header,
                payload: Segments(&[buffer(), DataSegment::new(1, 0, 2)]),
            },
            NO_FLAGS,
        )
        .unwrap();
    let written = plain.posted();
    assert_eq!((written[3], written[7]), (0x0a, 4), "a send of four units");
    assert_eq!(written[16..], wanted);
    let many = [buffer(); MAX_SEGMENTS - 1];
    assert_eq!(
        plain.queue.post(SendTagged { header: &header, payload: Segments(&many) }, NO_FLAGS),
        Err(PostError::TooLong)
    );
    plain
        .queue
        .post(SendTagged { header: &header, payload: Segments(&many[1..]) }, NO_FLAGS)
        .unwrap();
}

#[test]
fn a_rendezvous_names_the_data() {
    let header = TagHeader { opcode: TagOpcode::Rendezvous as u8, ..HEADER };
    let data = RendezvousHeader {
        address: Be64::new(0x0102_0304_0506_0708),
        rkey: Be32::new(0x090a_0b0c),
        length: Be32::new(0x0d0e_0f10),
    };
    let mut carried = vec![1, 0, 0, 0, 10, 11, 12, 13];
    carried.extend(TAG.to_be_bytes());
    carried.extend(1..=16);
    for length in [0, 1, 8, MAX_RENDEZVOUS_DATA] {
        let program = &[0xaa; MAX_RENDEZVOUS_DATA][..length];
        let (mut ours, mut theirs) = (PlainQueue::new(QPN, 16, 2), PlainQueue::new(QPN, 16, 2));
        ours.queue
            .post(SendRendezvous { header: &header, data: &data, program }, NO_FLAGS)
            .unwrap();
        theirs.queue.post(Send(Inline(&[&carried[..], program].concat())), NO_FLAGS).unwrap();
        assert_eq!(ours.posted(), theirs.posted(), "{length} bytes");
    }
    let mut plain = PlainQueue::new(QPN, 16, 2);
    let program = [0; MAX_RENDEZVOUS_DATA + 1];
    let posted = plain
        .queue
        .post(SendRendezvous { header: &header, data: &data, program: &program }, NO_FLAGS);
    assert_eq!(posted, Err(PostError::TooLong));
}
