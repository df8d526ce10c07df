//! Memory keys that WQEs change: lists, strided blocks, memory windows, invalidation by either
//! side.

use crate::support::dynamic::{Target, initiator, nodes, settle, syndromes};
use crate::support::{self, Connection, Node, Pair, Region, Rights, Wqe, command, pattern};
use barewire_hca::{CommandSyndrome, Fabric, Faults, Strict};
use barewire_layouts::command::answer;
use barewire_layouts::command::klm::Klm;
use barewire_layouts::command::mkey::{
    ANY_QPN, AccessMode, CreateMkeyIn, CreateMkeyOut, Mkc, QueryMkeyIn, QueryMkeyOut, key,
};
use barewire_layouts::cqe::{CqeOpcode, Syndrome};
use barewire_layouts::prm::{Layout, View, ViewMut};
use barewire_layouts::wqe::{
    ControlFlags, DataSegment, MkeyContextSegment, Opcode, REPEAT_BLOCK, RepeatBlock, RepeatEntry,
    UmrControlSegment, UmrFlags, UmrMask,
};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const RIGHTS: UmrMask = UmrMask::LOCAL_WRITE
    .union(UmrMask::REMOTE_READ)
    .union(UmrMask::REMOTE_WRITE)
    .union(UmrMask::ATOMIC);

/// Creates a free key of `entries` translations to be filled by WQEs, as libmlx5's
/// `mlx5dv_create_mkey` and the kernel's `alloc_mw` do.
pub(crate) fn free_key(
    node: &Node,
    entries: u32,
    change: impl FnOnce(&mut ViewMut<'_, Mkc>),
) -> u32 {
    let output = command::<CreateMkeyIn>(&node.device, |create| {
        let mut context = create.nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
        context
            .set(Mkc::ACCESS_MODE_1_0, AccessMode::Klm as u8)
            .set(Mkc::FREE, true)
            .set(Mkc::UMR_EN, true)
            .set(Mkc::LR, true)
            .set(Mkc::PD, node.pd)
            .set(Mkc::QPN, ANY_QPN)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, entries);
        change(&mut context);
    })
    .unwrap();
    key(answer::<CreateMkeyIn>(&output).unwrap().get(CreateMkeyOut::MKEY_INDEX), 0)
}

/// A key that is a memory window.
pub(crate) fn window(node: &Node) -> u32 {
    free_key(node, 4, |context| _ = context.set(Mkc::EN_RINVAL, true))
}

/// A context with every right that a work request can give.
pub(crate) fn context(key: u32, start: u64, length: u64) -> [u8; Mkc::BYTES] {
    let mut bytes = [0; Mkc::BYTES];
    ViewMut::<Mkc>::new(&mut bytes)
        .unwrap()
        .set(Mkc::LW, true)
        .set(Mkc::RR, true)
        .set(Mkc::RW, true)
        .set(Mkc::A, true)
        .set(Mkc::QPN, ANY_QPN)
        .set(Mkc::MKEY_7_0, key as u8)
        .set(Mkc::START_ADDR, start)
        .set(Mkc::LEN, length);
    bytes
}

/// A UMR WQE of `key`.
pub(crate) fn umr(
    key: u32,
    flags: UmrFlags,
    mask: UmrMask,
    octowords: u16,
    context: &[u8],
    list: &[u8],
) -> Wqe {
    let control = UmrControlSegment {
        flags: flags.bits(),
        translation_octowords: octowords.into(),
        mask: mask.bits().into(),
        ..UmrControlSegment::default()
    };
    Wqe::new(Opcode::Umr).immediate(key).raw(control.as_bytes()).raw(context).raw(list)
}

/// The list with the zeros that fill it up to 64 bytes, and its length in units of 16.
pub(crate) fn padded(list: &[u8]) -> (Vec<u8>, u16) {
    let mut bytes = list.to_vec();
    bytes.resize(list.len().next_multiple_of(64), 0);
    let octowords = (bytes.len() / 16) as u16;
    (bytes, octowords)
}

/// The WQE of libmlx5's `mlx5dv_wr_mr_list` and `mlx5dv_wr_mr_interleaved`.
fn configure(key: u32, list: &[u8], length: u64) -> Wqe {
    let (list, octowords) = padded(list);
    let mask = UmrMask::FREE | UmrMask::KEY | UmrMask::LENGTH | RIGHTS;
    umr(key, UmrFlags::INLINE, mask, octowords, &context(key, 0, length), &list)
}

/// The WQE of libmlx5's `ibv_wr_bind_mw`: window `old` becomes `new` for queue pair `qpn`.
pub(crate) fn bind(
    old: u32,
    new: u32,
    qpn: u32,
    region: &Region,
    (address, length): (u64, u64),
) -> Wqe {
    let flags = UmrFlags::INLINE | UmrFlags::TRANSLATION_OFFSET | UmrFlags::CHECK_FREE;
    let mask = UmrMask::FREE
        | UmrMask::KEY
        | UmrMask::QPN
        | UmrMask::LENGTH
        | UmrMask::START_ADDRESS
        | RIGHTS;
    let mut context = context(new, address, length);
    ViewMut::<Mkc>::new(&mut context).unwrap().set(Mkc::QPN, qpn);
    let (list, octowords) = padded(Klm::new(length as u32, region.key, address).as_bytes());
    umr(old, flags, mask, octowords, &context, &list)
}

/// The WQE of libmlx5's `ibv_wr_local_inv`.
fn local_invalidation(key: u32) -> Wqe {
    Wqe::new(Opcode::Umr)
        .immediate(key)
        .raw(UmrControlSegment::INVALIDATE.as_bytes())
        .raw(MkeyContextSegment::FREE.as_bytes())
}

fn repeat(rows: u32, entries: &[(u16, u16, &Region, u64)]) -> Vec<u8> {
    let head = RepeatBlock {
        byte_count: entries.iter().map(|entry| u32::from(entry.1)).sum::<u32>().into(),
        operation: REPEAT_BLOCK.into(),
        repeat_count: rows.into(),
        entries: (entries.len() as u16).into(),
        ..RepeatBlock::default()
    };
    let mut bytes = head.as_bytes().to_vec();
    for (stride, length, region, offset) in entries {
        let entry = RepeatEntry {
            stride: (*stride).into(),
            byte_count: (*length).into(),
            key: region.key.into(),
            address: (region.address() + offset).into(),
        };
        bytes.extend(entry.as_bytes());
    }
    bytes
}

/// Executes `wqe` on `b` and gives the syndrome of its completion.
fn on_b(pair: &mut Pair, wqe: &Wqe) -> Option<Syndrome> {
    pair.qb.post(wqe);
    pair.settle();
    let completion = pair.qb.send_cq.poll().expect("a completion");
    assert_eq!((completion.length, pair.qb.send_cq.poll()), (0, None));
    completion.syndrome
}

/// Writes `bytes` from `a`.
fn write(pair: &mut Pair, bytes: &[u8], address: u64, rkey: u32) -> Option<Syndrome> {
    let source = pair.a.region(bytes.len());
    source.memory.write(0, bytes);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(address, rkey);
    pair.qa.post(&wqe.data(source.address(), bytes.len(), source.key));
    pair.settle();
    pair.qa.send_cq.poll().expect("a completion").syndrome
}

fn query<T>(node: &Node, key: u32, read: impl FnOnce(View<'_, Mkc>) -> T) -> T {
    let output = command::<QueryMkeyIn>(&node.device, |query| {
        query.set(QueryMkeyIn::MKEY_INDEX, key >> 8);
    })
    .unwrap();
    read(answer::<QueryMkeyIn>(&output).unwrap().nested(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY))
}

/// A pair whose devices report what strict checks find, instead of panicking.
fn lenient() -> Pair {
    let fabric = Fabric::new();
    let open = || {
        Node::open(
            barewire_hca::Config::default()
                .mode(barewire_hca::Mode::Stepped)
                .wire(barewire_hca::WireKind::Fabric(fabric.clone()))
                .strict(Strict::Report),
        )
    };
    Pair::over(open(), open(), &Connection::default())
}

#[test]
fn a_list_in_the_wqe_opens_a_free_key() {
    let mut pair = Pair::new(&Connection::default());
    let (one, two) = (pair.b.region(256), pair.b.region(256));
    let key = free_key(&pair.b, 4, |_| ());
    let list = [Klm::new(100, one.key, one.address()), Klm::new(60, two.key, two.address() + 8)];
    assert_eq!(on_b(&mut pair, &configure(key, list.as_bytes(), 160)), None);
    assert!(query(&pair.b, key, |context| !context.get(Mkc::FREE) && context.get(Mkc::RW)));
    let data = pattern(160, 1);
    assert_eq!(write(&mut pair, &data, 0, key), None);
    assert_eq!(
        (one.memory.read(0, 100), two.memory.read(8, 60)),
        (data[..100].to_vec(), data[100..].to_vec())
    );
    // It is an lkey as well, and the WQE that uses it may directly follow the one that creates it.
    let list = [Klm::new(60, two.key, two.address() + 8), Klm::new(100, one.key, one.address())];
    pair.qb.place(&configure(key, list.as_bytes(), 160).unsignalled());
    let target = pair.a.region(160);
    let send = Wqe::new(Opcode::RdmaWrite).flags(ControlFlags::SMALL_FENCE);
    pair.qb.post(&send.remote(target.address(), target.key).data(0, 160, key));
    pair.settle();
    assert_eq!(pair.qb.send_cq.poll().unwrap().syndrome, None);
    assert_eq!(target.memory.read(0, 160), [&data[100..], &data[..100]].concat());
    assert_eq!(pair.b.device.counters().key_changes, 2);
}

#[test]
fn a_strided_block_scatters_row_by_row() {
    let mut pair = Pair::new(&Connection::default());
    let (one, two) = (pair.b.region(1024), pair.b.region(1024));
    let key = free_key(&pair.b, 4, |_| ());
    // Three rows of 16 bytes at a stride of 100 and 24 bytes at a stride of 40.
    let list = repeat(3, &[(100, 16, &one, 4), (40, 24, &two, 0)]);
    assert_eq!(on_b(&mut pair, &configure(key, &list, 120)), None);
    let data = pattern(120, 2);
    assert_eq!(write(&mut pair, &data, 0, key), None);
    for row in 0..3 {
        assert_eq!(one.memory.read(4 + row * 100, 16), data[row * 40..][..16]);
        assert_eq!(two.memory.read(row * 40, 24), data[row * 40 + 16..][..24]);
    }
    assert_eq!(one.memory.read(20, 84), [0; 84]);
    // Back by a read that starts inside a row.
    let target = pair.a.region(64);
    pair.qa.post(&Wqe::new(Opcode::RdmaRead).remote(50, key).data(
        target.address(),
        64,
        target.key,
    ));
    pair.settle();
    assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, None);
    assert_eq!(target.memory.read(0, 64), data[50..114]);
}

#[test]
fn a_list_may_lie_in_memory() {
    let mut pair = Pair::new(&Connection::default());
    let (target, table) = (pair.b.region(4096), pair.b.region(4096));
    let key = free_key(&pair.b, 64, |_| ());
    let list: Vec<Klm> =
        (0..64).rev().map(|at| Klm::new(64, target.key, target.address() + at * 64)).collect();
    table.memory.write(128, list.as_bytes());
    let mask = UmrMask::FREE | UmrMask::KEY | UmrMask::LENGTH | RIGHTS;
    let pointer = |length| DataSegment::new(table.address() + 128, length, table.key);
    let wqe =
        umr(key, UmrFlags::empty(), mask, 64, &context(key, 0, 4096), pointer(1024).as_bytes());
    assert_eq!(on_b(&mut pair, &wqe), None);
    let data = pattern(4096, 3);
    assert_eq!(write(&mut pair, &data, 0, key), None);
    assert_eq!(target.memory.read(0, 64), data[4032..]);
    // A list that cannot be read changes nothing.
    let pointer = DataSegment::new(table.address() + 4000, 1024, table.key);
    let wqe = umr(key, UmrFlags::empty(), mask, 64, &context(key, 0, 1), pointer.as_bytes());
    assert_eq!(on_b(&mut pair, &wqe), Some(Syndrome::LocalProtection));
    assert_eq!(query(&pair.b, key, |context| context.get(Mkc::LEN)), 4096);
}

#[test]
fn part_of_a_list_is_replaced_where_the_offset_says() {
    let mut pair = Pair::new(&Connection::default());
    let (one, two) = (pair.b.region(64), pair.b.region(64));
    let key = free_key(&pair.b, 8, |_| ());
    let list = [Klm::new(8, one.key, one.address()); 8];
    assert_eq!(on_b(&mut pair, &configure(key, list.as_bytes(), 64)), None);
    let list = [Klm::new(8, two.key, two.address()); 4];
    let control = UmrControlSegment {
        flags: (UmrFlags::INLINE | UmrFlags::TRANSLATION_OFFSET).bits(),
        translation_octowords: 4.into(),
        translation_offset: 4.into(),
        ..UmrControlSegment::default()
    };
    let wqe = Wqe::new(Opcode::Umr).immediate(key).raw(control.as_bytes()).raw(&context(0, 0, 0));
    assert_eq!(on_b(&mut pair, &wqe.raw(list.as_bytes())), None);
    assert_eq!(write(&mut pair, &pattern(8, 4), 24, key), None);
    assert_eq!(write(&mut pair, &pattern(8, 5), 32, key), None);
    assert_eq!((one.memory.read(0, 8), two.memory.read(0, 8)), (pattern(8, 4), pattern(8, 5)));
}

#[test]
fn a_window_opens_a_region_to_one_queue_pair_until_it_is_invalidated() {
    let mut pair = Pair::new(&Connection::default());
    let region = pair.b.region(256);
    // What peers may not touch, a window opens: the region itself grants local rights only.
    let local =
        Rights { local_write: true, remote_read: false, remote_write: false, remote_atomic: false };
    let lkey = pair.b.key(&region.memory, 0, 256, local);
    let region = Region { key: lkey, ..region };
    let mw = window(&pair.b);
    let (qpn, range) = (pair.qb.number, (region.address() + 64, 64));
    let rkey = mw + 1;
    assert_eq!(on_b(&mut pair, &bind(mw, rkey, qpn, &region, range)), None);
    assert_eq!(
        query(&pair.b, mw, |context| (context.get(Mkc::QPN), context.get(Mkc::MKEY_7_0))),
        (qpn, 1)
    );
    assert_eq!(write(&mut pair, &pattern(64, 6), range.0, rkey), None);
    assert_eq!(region.memory.read(64, 64), pattern(64, 6));
    assert_eq!(on_b(&mut pair, &local_invalidation(rkey)), None);
    assert!(query(&pair.b, mw, |context| context.get(Mkc::FREE)));
    assert_eq!(write(&mut pair, &[1; 8], range.0, rkey), Some(Syndrome::RemoteAccess));
    assert_eq!(region.memory.read(64, 64), pattern(64, 6));
}

#[test]
fn a_window_of_type_1_moves_without_being_freed() {
    let mut pair = Pair::new(&Connection::default());
    let (region, mw) = (pair.b.region(256), window(&pair.b));
    // libmlx5's `ibv_bind_mw`: any queue pair's, and what the window was before does not matter.
    let flags = UmrFlags::INLINE | UmrFlags::TRANSLATION_OFFSET;
    let mask = UmrMask::FREE | UmrMask::KEY;
    for (step, offset) in [(1, 0), (2, 128)] {
        let (key, start) = (mw + step, region.address() + offset);
        let (list, octowords) = padded(Klm::new(64, region.key, start).as_bytes());
        let mask = mask | UmrMask::LENGTH | UmrMask::START_ADDRESS | RIGHTS;
        let wqe = umr(mw + step - 1, flags, mask, octowords, &context(key, start, 64), &list);
        assert_eq!(on_b(&mut pair, &wqe), None);
        assert_eq!(write(&mut pair, &pattern(64, offset), start, key), None);
        assert_eq!(region.memory.read(offset as usize, 64), pattern(64, offset));
    }
    let unbound = umr(mw + 2, flags, mask, 0, MkeyContextSegment::FREE.as_bytes(), &[]);
    assert_eq!(on_b(&mut pair, &unbound), None);
    assert_eq!(
        write(&mut pair, &[1; 8], region.address() + 128, mw + 2),
        Some(Syndrome::RemoteAccess)
    );
}

#[test]
fn a_window_is_not_another_queue_pairs() {
    let mut pair = Pair::new(&Connection::default());
    let (region, mw) = (pair.b.region(64), window(&pair.b));
    let range = (region.address(), 64);
    assert_eq!(on_b(&mut pair, &bind(mw, mw + 1, 0x1234, &region, range)), None);
    assert_eq!(write(&mut pair, &[1; 8], range.0, mw + 1), Some(Syndrome::RemoteAccess));
    // Nor may it be invalidated here: not by a send that comes, not by a local request.
    let mut pair = Pair::new(&Connection::default());
    let (region, mw) = (pair.b.region(64), window(&pair.b));
    let range = (region.address(), 64);
    assert_eq!(on_b(&mut pair, &bind(mw, mw + 1, 0x1234, &region, range)), None);
    assert_eq!(on_b(&mut pair, &local_invalidation(mw + 1)), Some(Syndrome::MemoryWindowBind));
    assert!(query(&pair.b, mw, |context| !context.get(Mkc::FREE)));
}

#[test]
fn a_send_takes_a_window_back_and_says_so() {
    for length in [0, 8, 700] {
        let mut pair = Pair::new(&Connection::default());
        let (region, mw) = (pair.b.region(64), window(&pair.b));
        let (qpn, range) = (pair.qb.number, (region.address(), 64));
        assert_eq!(on_b(&mut pair, &bind(mw, mw + 5, qpn, &region, range)), None);
        let (source, target) = (pair.a.region(1024), pair.b.region(1024));
        source.memory.write(0, &pattern(length, 7));
        pair.qb.post_receive(&[(target.address(), 1024, target.key)]);
        let send = Wqe::new(Opcode::SendInvalidate).immediate(mw + 5);
        pair.qa.post(&send.data(source.address(), length, source.key));
        pair.settle();
        assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, None);
        let arrival = pair.qb.receive_cq.poll().unwrap();
        assert_eq!(arrival.opcode, CqeOpcode::ResponderSendInvalidate);
        assert_eq!((arrival.immediate, arrival.length as usize), (mw + 5, length));
        assert_eq!(target.memory.read(0, length), pattern(length, 7));
        assert!(query(&pair.b, mw, |context| context.get(Mkc::FREE)));
        // It can be bound again, under another byte.
        assert_eq!(on_b(&mut pair, &bind(mw + 5, mw + 6, qpn, &region, range)), None);
        assert_eq!(write(&mut pair, &[9; 8], range.0, mw + 6), None);
    }
}

#[test]
fn a_send_that_may_not_invalidate_ends_the_connection() {
    let keys = |pair: &Pair, mw| {
        let region = pair.b.region(64);
        // A region that is no window, a window under another byte, a key that there is not.
        [region.key, mw + 2, 0x00ab_cd00]
    };
    for number in 0..3 {
        let mut pair = Pair::new(&Connection::default());
        let (region, mw) = (pair.b.region(64), window(&pair.b));
        let qpn = pair.qb.number;
        assert_eq!(on_b(&mut pair, &bind(mw, mw + 1, qpn, &region, (region.address(), 64))), None);
        let key = keys(&pair, mw)[number];
        pair.qb.post_receive(&[(region.address(), 64, region.key)]);
        pair.qa.post(&Wqe::new(Opcode::SendInvalidate).immediate(key).inline(&[1; 4]));
        pair.settle();
        // The peer gets no NAK, and no acknowledgment of its repetitions (IBTA 9.9.6.3, class J).
        let timeout = Some(Syndrome::TransportRetryExceeded);
        assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, timeout);
        assert_eq!(pair.b.device.counters().naks_sent, 0);
        assert_eq!(pair.qb.receive_cq.poll().unwrap().syndrome, Some(Syndrome::LocalAccess));
        assert!(query(&pair.b, mw, |context| !context.get(Mkc::FREE)));
    }
}

#[test]
fn lost_packets_invalidate_once() {
    let lossy = Faults::default().drop(0.2).reorder(0.1).duplicate(0.1).seed(11);
    let mut pair = Pair::with_faults(&Connection::default(), lossy.clone(), lossy);
    let region = pair.b.region(64);
    let (qpn, range) = (pair.qb.number, (region.address(), 64));
    for round in 0..20 {
        let mw = window(&pair.b);
        assert_eq!(on_b(&mut pair, &bind(mw, mw + 1, qpn, &region, range)), None);
        pair.qb.post_receive(&[(region.address(), 64, region.key)]);
        pair.qa.post(&Wqe::new(Opcode::SendInvalidate).immediate(mw + 1).inline(&[round; 4]));
        pair.settle();
        assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, None, "round {round}");
        assert_eq!(pair.qb.receive_cq.drain().len(), 1);
    }
}

#[test]
fn what_a_key_does_not_allow_is_a_bind_error() {
    let list = |region: &Region| Klm::new(8, region.key, region.address());
    let codes = |pair: &Pair| (pair.qb.send_cq.last[54], pair.qb.send_cq.last[52]);
    let cases: [fn(&Pair) -> Wqe; 6] = [
        // A key that there is not.
        |_| configure(0x00ab_cd00, &[0; 16], 1),
        // One that work requests may not change.
        |pair| configure(pair.b.region(8).key, &[0; 16], 1),
        // More translations than it has room for.
        |pair| configure(free_key(&pair.b, 4, |_| ()), &[0; 80], 1),
        // Addresses that wrap.
        |pair| {
            let key = free_key(&pair.b, 4, |_| ());
            let mask = UmrMask::LENGTH | UmrMask::START_ADDRESS;
            umr(key, UmrFlags::INLINE, mask, 0, &context(key, u64::MAX, 2), &[])
        },
        // A strided block that is not whole.
        |pair| {
            let region = pair.b.region(64);
            let block = repeat(1, &[(8, 8, &region, 0); 5]);
            configure(free_key(&pair.b, 4, |_| ()), &block[..64], 8)
        },
        // A list for a key of pages.
        |pair| {
            let key = free_key(&pair.b, 4, |context| {
                context.set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt as u8);
            });
            configure(key, &[0; 16], 8)
        },
    ];
    for (number, case) in cases.iter().enumerate() {
        let mut pair = Pair::new(&Connection::default());
        let wqe = case(&pair);
        assert_eq!(on_b(&mut pair, &wqe), Some(Syndrome::MemoryWindowBind), "case {number}");
        // What the vendor and the hardware say of it.
        let hardware = if matches!(number, 2 | 5) { 0x0f } else { 0 };
        assert_eq!(codes(&pair), (0x78, hardware), "case {number}");
    }
    // Binding one that is bound.
    let mut pair = Pair::new(&Connection::default());
    let (region, mw) = (pair.b.region(64), window(&pair.b));
    let (qpn, range) = (pair.qb.number, (region.address(), 8));
    assert_eq!(on_b(&mut pair, &bind(mw, mw + 1, qpn, &region, range)), None);
    assert_eq!(
        on_b(&mut pair, &bind(mw, mw + 2, qpn, &region, range)),
        Some(Syndrome::MemoryWindowBind)
    );
    assert_eq!(query(&pair.b, mw, |context| context.get(Mkc::MKEY_7_0)), 1);
    // Freeing one that is free, where that is not wanted.
    let mut pair = Pair::new(&Connection::default());
    let (region, mw) = (pair.b.region(64), window(&pair.b));
    let list = list(&region);
    let (list, octowords) = padded(list.as_bytes());
    let flags = UmrFlags::INLINE | UmrFlags::CHECK_NOT_FREE;
    let wqe = umr(mw, flags, UmrMask::FREE, octowords, &context(mw, 0, 8), &list);
    assert_eq!(on_b(&mut pair, &wqe), Some(Syndrome::MemoryWindowBind));
    assert_eq!(codes(&pair), (0x78, 0x08));
}

#[test]
fn a_key_of_pages_keeps_within_its_pages() {
    let made = |pair: &Pair| {
        let memory =
            support::Memory::register(&pair.b.device, 4096, barewire_hca::UmemAccess::empty());
        let output = command::<CreateMkeyIn>(&pair.b.device, |create| {
            create.set(CreateMkeyIn::MKEY_UMEM_ID, memory.umem());
            create
                .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
                .set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt as u8)
                .set(Mkc::UMR_EN, true)
                .set(Mkc::LR, true)
                .set(Mkc::QPN, ANY_QPN)
                .set(Mkc::PD, pair.b.pd)
                .set(Mkc::LEN, 4096);
        });
        let index =
            answer::<CreateMkeyIn>(&output.unwrap()).unwrap().get(CreateMkeyOut::MKEY_INDEX);
        (memory, key(index, 0))
    };
    // Longer than the pages; writable where the pages are not; and what is allowed.
    for (mask, length, want) in [
        (UmrMask::LENGTH, 4097, Some(Syndrome::MemoryWindowBind)),
        (UmrMask::REMOTE_WRITE, 4096, Some(Syndrome::MemoryWindowBind)),
        (UmrMask::LENGTH | UmrMask::REMOTE_READ, 100, None),
    ] {
        let mut pair = Pair::new(&Connection::default());
        let (_memory, key) = made(&pair);
        let wqe = umr(key, UmrFlags::INLINE, mask, 0, &context(key, 0, length), &[]);
        assert_eq!(on_b(&mut pair, &wqe), want);
    }
}

#[test]
fn what_a_user_may_not_ask_for_is_a_bad_wqe() {
    let control = |flags: u8, mask: u64, offset: u16| UmrControlSegment {
        flags,
        mask: mask.into(),
        translation_offset: offset.into(),
        ..UmrControlSegment::default()
    };
    let cases = [
        // Another protection domain.
        (control(0x80, 1 << 7, 0), "mkey_mask"),
        (control(0x01, 1, 0), "flags"),
        // A signature.
        (control(0x80, 1, 4), "bsf_octowords"),
        // A list that is not there.
        (
            UmrControlSegment { translation_octowords: 4.into(), ..control(0x80, 1, 0) },
            "list of translations",
        ),
        (UmrControlSegment { translation_octowords: 4.into(), ..control(0, 1, 0) }, "data segment"),
    ];
    for (control, text) in cases {
        let mut pair = lenient();
        let key = free_key(&pair.b, 4, |_| ());
        let wqe =
            Wqe::new(Opcode::Umr).immediate(key).raw(control.as_bytes()).raw(&context(key, 0, 1));
        assert_eq!(on_b(&mut pair, &wqe), Some(Syndrome::LocalQpOperation), "{text}");
        let reports = pair.b.device.take_reports();
        assert!(
            reports.iter().any(|report| report.to_string().contains(text)),
            "{reports:?} tell not of {text}"
        );
    }
}

#[test]
fn a_registration_waits_for_reads_if_it_is_told_to() {
    let mut pair = Pair::new(&Connection::default());
    let (source, target) = (pair.a.region(4096), pair.b.region(4096));
    source.memory.write(0, &pattern(4096, 9));
    let key = free_key(&pair.b, 4, |_| ());
    let list = Klm::new(4096, target.key, target.address());
    assert_eq!(on_b(&mut pair, &configure(key, list.as_bytes(), 4096)), None);
    // The read fills the key's memory; if the key were freed immediately, it would not exist when
    // the response arrives.
    pair.qb
        .place(&Wqe::new(Opcode::RdmaRead).remote(source.address(), source.key).data(0, 4096, key));
    let mut context = context(key, 0, 0);
    ViewMut::<Mkc>::new(&mut context).unwrap().set(Mkc::FREE, true);
    let free = umr(key, UmrFlags::INLINE, UmrMask::FREE, 0, &context, &[]);
    pair.qb.post(&free.flags(ControlFlags::FENCE));
    pair.settle();
    let completions = pair.qb.send_cq.drain();
    assert_eq!((completions.len(), completions.iter().all(support::Completion::is_ok)), (2, true));
    assert_eq!(target.memory.read(0, 4096), pattern(4096, 9));
    assert!(query(&pair.b, key, |context| context.get(Mkc::FREE)));
}

#[test]
fn strided_lists_of_commands_are_checked() {
    let pair = Pair::new(&Connection::default());
    let region = pair.b.region(64);
    let block = repeat(1, &[(8, 8, &region, 0); 3]);
    let create = |list: &[u8]| {
        let mut input = vec![0; CreateMkeyIn::BYTES];
        let mut create = barewire_layouts::command::request::<CreateMkeyIn>(&mut input).unwrap();
        create.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, (list.len() / 16) as u32);
        create
            .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::ACCESS_MODE_1_0, AccessMode::Klm as u8)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, (list.len() / 16) as u32)
            .set(Mkc::PD, pair.b.pd)
            .set(Mkc::LEN, 8);
        input.extend(list);
        let mut output = vec![0; CreateMkeyOut::BYTES];
        support::execute(&pair.b.device, &input, &mut output);
        answer::<CreateMkeyIn>(&output)
            .map(|_| ())
            .map_err(|error| CommandSyndrome::from_bits(error.syndrome))
    };
    assert_eq!(create(&block), Ok(()));
    assert_eq!(create(&block[..48]), Err(Some(CommandSyndrome::MkeyList)));
    assert!(Klm::read_from_bytes(&block[..16]).is_ok());
}

#[test]
fn initiators_register_and_a_window_may_be_a_targets() {
    let [a, b] = nodes();
    let connection = Connection::default();
    let (mut dci, mut target) = (initiator(&a, &connection), Target::new(&b, &connection));
    let (one, two, far) = (a.region(256), a.region(256), b.region(160));
    let data = pattern(160, 8);
    one.memory.write(0, &data[..100]);
    two.memory.write(0, &data[100..]);
    let key = free_key(&a, 4, |_| ());
    let list = [Klm::new(100, one.key, one.address()), Klm::new(60, two.key, two.address())];
    let write = |target: &Target, rkey| {
        let wqe =
            Wqe::new(Opcode::RdmaWrite).addressed(&target.address()).remote(far.address(), rkey);
        wqe.data(0, 160, key)
    };
    dci.post(&configure(key, list.as_bytes(), 160));
    dci.post(&write(&target, far.key));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [None; 2]);
    assert_eq!(far.memory.read(0, 160), data);
    // What is bound to a target is its connections', and not another target's.
    let (mut binder, other, mw) =
        (initiator(&b, &connection), Target::new(&b, &connection), window(&b));
    binder.post(&bind(mw, mw + 1, target.number, &far, (far.address(), 160)));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut binder), [None]);
    let mut stranger = initiator(&a, &connection);
    stranger.post(&write(&other, mw + 1));
    dci.post(&write(&target, mw + 1));
    target.srq.post(&[(far.address(), 160, far.key)]);
    dci.post(&Wqe::new(Opcode::SendInvalidate).immediate(mw + 1).addressed(&target.address()));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut stranger), [Some(Syndrome::RemoteAccess)]);
    assert_eq!(syndromes(&mut dci), [None; 2]);
    let arrived = target.cq.poll().unwrap();
    let told = (arrived.opcode, arrived.qpn, arrived.immediate);
    assert_eq!(told, (CqeOpcode::ResponderSendInvalidate, target.number, mw + 1));
    assert!(query(&b, mw, |context| context.get(Mkc::FREE)));
    dci.post(&write(&target, mw + 1));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [Some(Syndrome::RemoteAccess)]);
}
