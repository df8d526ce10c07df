//! Memory keys that refer to other keys: lists by command and by umem, rights, depth, and keys
//! without translations.

use crate::support::{self, Connection, Memory, Node, Pair, Rights, Wqe, command, pattern};
use barewire_hca::{CommandSyndrome, UmemAccess};
use barewire_layouts::command::klm::Klm;
use barewire_layouts::command::mkey::{
    ANY_QPN, AccessMode, CreateMkeyIn, CreateMkeyOut, Mkc, QueryMkeyIn, QueryMkeyOut, key,
};
use barewire_layouts::command::{CommandError, answer, request};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::prm::{Layout, ViewMut};
use barewire_layouts::wqe::Opcode;
use zerocopy::IntoBytes;

const VARIANT: u8 = 0x33;

/// An indirect key of `length` bytes at `start` over `list`, which follows the command.
pub(crate) fn indirect(
    node: &Node,
    (mode, log_page): (AccessMode, u8),
    (start, length): (u64, u64),
    list: &[Klm],
    change: impl FnOnce(&mut ViewMut<'_, CreateMkeyIn>),
) -> Result<u32, CommandError> {
    let mut input = vec![0; CreateMkeyIn::BYTES];
    let mut create = request::<CreateMkeyIn>(&mut input).unwrap();
    create.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, list.len() as u32);
    create
        .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
        .set(Mkc::ACCESS_MODE_1_0, mode as u8)
        .set(Mkc::LR, true)
        .set(Mkc::LW, true)
        .set(Mkc::RR, true)
        .set(Mkc::RW, true)
        .set(Mkc::A, true)
        .set(Mkc::RELAXED_ORDERING_WRITE, true)
        .set(Mkc::RELAXED_ORDERING_READ, true)
        .set(Mkc::QPN, ANY_QPN)
        .set(Mkc::MKEY_7_0, VARIANT)
        .set(Mkc::PD, node.pd)
        .set(Mkc::START_ADDR, start)
        .set(Mkc::LEN, length)
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, list.len() as u32)
        .set(Mkc::LOG_PAGE_SIZE, log_page);
    change(&mut create);
    input.extend(list.as_bytes());
    let mut output = vec![0; CreateMkeyOut::BYTES];
    support::execute(&node.device, &input, &mut output);
    Ok(key(answer::<CreateMkeyIn>(&output)?.get(CreateMkeyOut::MKEY_INDEX), VARIANT))
}

pub(crate) const KLM: (AccessMode, u8) = (AccessMode::Klm, 0);
const SEND: Option<Syndrome> = None;

fn write(pair: &mut Pair, bytes: &[u8], address: u64, rkey: u32) -> Option<Syndrome> {
    let source = pair.a.region(bytes.len());
    source.memory.write(0, bytes);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(address, rkey);
    pair.qa.post(&wqe.data(source.address(), bytes.len(), source.key));
    pair.settle();
    pair.qa.send_cq.poll().expect("a completion").syndrome
}

#[test]
fn a_write_goes_over_the_ranges_of_a_zero_based_list() {
    let mut pair = Pair::new(&Connection::default());
    let (one, two) = (pair.b.region(4096), pair.b.region(4096));
    let list = [
        Klm::new(300, one.key, one.address() + 8),
        Klm::new(0, 0, 0),
        Klm::new(500, two.key, two.address()),
        Klm::new(200, one.key, one.address() + 2000),
    ];
    let rkey = indirect(&pair.b, KLM, (0, 1000), &list, |_| ()).unwrap();
    let data = pattern(1000, 5);
    assert_eq!(write(&mut pair, &data, 0, rkey), SEND);
    assert_eq!(one.memory.read(8, 300), data[..300]);
    assert_eq!(two.memory.read(0, 500), data[300..800]);
    assert_eq!(one.memory.read(2000, 200), data[800..]);
    assert_eq!(one.memory.read(308, 8), [0; 8]);
    // Back by a read over the same key, from the middle of one range to the middle of another.
    let target = pair.a.region(600);
    let read = Wqe::new(Opcode::RdmaRead).remote(250, rkey).data(target.address(), 600, target.key);
    pair.qa.post(&read);
    pair.settle();
    assert!(pair.qa.send_cq.poll().unwrap().is_ok());
    assert_eq!(target.memory.read(0, 600), data[250..850]);
    // One byte too far.
    assert_eq!(write(&mut pair, &[1, 2], 999, rkey), Some(Syndrome::RemoteAccess));
}

#[test]
fn ranges_of_one_size_come_from_a_umem_under_an_iova() {
    let mut pair = Pair::new(&Connection::default());
    let target = pair.b.region(4 << 8);
    let list: Vec<Klm> =
        (0..4).rev().map(|page| Klm::new(0, target.key, target.address() + (page << 8))).collect();
    let table = Memory::register(&pair.b.device, 4096, UmemAccess::empty());
    table.write(64, list.as_bytes());
    let iova = 0x7777_0000_0000;
    let rkey = indirect(&pair.b, (AccessMode::Ksm, 8), (iova, 4 << 8), &[], |create| {
        create
            .set(CreateMkeyIn::MKEY_UMEM_ID, table.umem())
            .set(CreateMkeyIn::MKEY_UMEM_OFFSET, 64)
            .set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, 4)
            .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 4);
    });
    let rkey = rkey.unwrap();
    let data = pattern(4 << 8, 6);
    assert_eq!(write(&mut pair, &data, iova, rkey), SEND);
    for page in 0..4 {
        assert_eq!(target.memory.read((3 - page) << 8, 256), data[page << 8..(page + 1) << 8]);
    }
    let output = command::<QueryMkeyIn>(&pair.b.device, |query| {
        query.set(QueryMkeyIn::MKEY_INDEX, rkey >> 8);
    });
    let output = output.unwrap();
    let context =
        answer::<QueryMkeyIn>(&output).unwrap().nested(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY);
    assert_eq!(context.get(Mkc::ACCESS_MODE_1_0), AccessMode::Ksm as u8);
    assert_eq!(
        (context.get(Mkc::LOG_PAGE_SIZE), context.get(Mkc::TRANSLATIONS_OCTWORD_SIZE)),
        (8, 4)
    );
    assert!(context.get(Mkc::RELAXED_ORDERING_READ) && context.get(Mkc::RELAXED_ORDERING_WRITE));
}

/// A key over all addresses (length64), as the kernel makes for implicit on-demand paging: the
/// addresses of a process as they are, and the last bytes before 2^64.
#[test]
fn a_key_covers_every_address() {
    let mut pair = Pair::new(&Connection::default());
    let (low, high) = (pair.b.region(4096), pair.b.region(4096));
    let quarter = 1_u64 << 62;
    let list = [
        Klm::new(0, low.key, 0),
        Klm::default(),
        Klm::default(),
        Klm::new(0, high.key, (high.address() + 4096).wrapping_sub(quarter)),
    ];
    let all = |create: &mut ViewMut<'_, CreateMkeyIn>| {
        create.nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY).set(Mkc::LENGTH64, true);
    };
    let rkey = indirect(&pair.b, (AccessMode::Ksm, 62), (0, 0), &list, all).unwrap();
    assert_eq!(write(&mut pair, &[1; 8], low.address() + 16, rkey), SEND);
    assert_eq!(low.memory.read(16, 8), [1; 8]);
    assert_eq!(write(&mut pair, &[2; 8], 0_u64.wrapping_sub(8), rkey), SEND);
    assert_eq!(high.memory.read(4088, 8), [2; 8]);
    let output = command::<QueryMkeyIn>(&pair.b.device, |query| {
        query.set(QueryMkeyIn::MKEY_INDEX, rkey >> 8);
    });
    let output = output.unwrap();
    let context =
        answer::<QueryMkeyIn>(&output).unwrap().nested(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY);
    assert!(context.get(Mkc::LENGTH64));
    // No key is behind the second quarter.
    assert_eq!(write(&mut pair, &[3; 8], quarter, rkey), Some(Syndrome::RemoteAccess));
}

#[test]
fn ranges_of_a_ksm_list_have_a_size() {
    let pair = Pair::new(&Connection::default());
    let region = pair.b.region(4096);
    let list = [Klm::new(0, region.key, region.address()); 2];
    let with = |log_size, count: usize| {
        indirect(&pair.b, (AccessMode::Ksm, log_size), (0, 1), &list[..count], |_| ())
    };
    for log_size in [0, 7] {
        let refused = with(log_size, 1).unwrap_err();
        let why = CommandSyndrome::from_bits(refused.syndrome);
        assert_eq!(why, Some(CommandSyndrome::MkeyEntrySize), "{log_size}");
    }
    for (log_size, count) in [(8, 2), (12, 1), (63, 2)] {
        assert!(with(log_size, count).is_ok(), "{log_size}, {count}");
    }
}

#[test]
fn an_atomic_works_in_one_range_and_not_across_two() {
    for (address, want) in [(8, None), (0, Some(Syndrome::RemoteOperation))] {
        let mut pair = Pair::new(&Connection::default());
        let (target, result) = (pair.b.region(64), pair.a.region(8));
        let list = [
            Klm::new(4, target.key, target.address() + 32),
            Klm::new(60, target.key, target.address() + 4),
        ];
        let rkey = indirect(&pair.b, KLM, (0, 64), &list, |_| ()).unwrap();
        let add = Wqe::new(Opcode::AtomicFetchAdd).remote(address, rkey).atomic(7, 0);
        pair.qa.post(&add.data(result.address(), 8, result.key));
        pair.settle();
        assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, want);
        let added = target.memory.read(8, 8) == 7_u64.to_ne_bytes();
        assert_eq!(added, want.is_none());
    }
}

#[test]
fn every_key_on_the_way_is_checked() {
    let mut pair = Pair::new(&Connection::default());
    let target = pair.b.region(64);
    let readable =
        Rights { local_write: false, remote_read: true, remote_write: false, remote_atomic: false };
    let inner = pair.b.key(&target.memory, 0, 64, readable);
    let list = [Klm::new(64, inner, target.address())];
    let rkey = indirect(&pair.b, KLM, (0, 64), &list, |_| ()).unwrap();
    assert_eq!(write(&mut pair, &[1; 8], 0, rkey), Some(Syndrome::RemoteAccess));
    assert_eq!(target.memory.read(0, 8), [0; 8]);
    // A destroyed key.
    let mut pair = Pair::new(&Connection::default());
    let target = pair.b.region(64);
    let rkey =
        indirect(&pair.b, KLM, (0, 64), &[Klm::new(64, target.key, target.address())], |_| ());
    pair.b.destroy_key(target.key);
    assert_eq!(write(&mut pair, &[1; 8], 0, rkey.unwrap()), Some(Syndrome::RemoteAccess));
}

#[test]
fn keys_may_be_four_indirections_deep_and_no_deeper() {
    for (levels, want) in [(4, None), (5, Some(Syndrome::RemoteAccess))] {
        let mut pair = Pair::new(&Connection::default());
        let target = pair.b.region(64);
        let (mut inner, mut address) = (target.key, target.address());
        for _ in 0..levels {
            let list =
                [Klm::new(32, inner, address), Klm::new(32, inner, address.wrapping_add(32))];
            inner = indirect(&pair.b, KLM, (0, 64), &list, |_| ()).unwrap();
            address = 0;
        }
        assert_eq!(write(&mut pair, &pattern(64, 1), 0, inner), want, "{levels} levels");
        assert_eq!(target.memory.read(0, 64) == pattern(64, 1), want.is_none());
    }
}

#[test]
fn a_bomb_of_single_bytes_is_written_packet_by_packet() {
    let mut pair = Pair::new(&Connection::default());
    let target = pair.b.region(64);
    // 512 times 512 bytes, each a range of its own.
    let bytes: Vec<Klm> = vec![Klm::new(1, target.key, target.address()); 512];
    let inner = indirect(&pair.b, KLM, (0, 512), &bytes, |_| ()).unwrap();
    let outer: Vec<Klm> = vec![Klm::new(512, inner, 0); 512];
    let outer = indirect(&pair.b, KLM, (0, 512 * 512), &outer, |_| ()).unwrap();
    // More than an access may have, but each packet has few.
    assert_eq!(write(&mut pair, &vec![1; 512 * 512], 0, outer), None);
    assert_eq!(target.memory.read(0, 2), [1, 0]);
}

#[test]
fn lists_that_do_not_fit_are_refused_and_keys_to_be_filled_are_not() {
    let pair = Pair::new(&Connection::default());
    let list = [Klm::new(8, 0x1234, 0)];
    let why =
        |made: Result<u32, CommandError>| CommandSyndrome::from_bits(made.unwrap_err().syndrome);
    let short = indirect(&pair.b, KLM, (0, 9), &list, |_| ());
    assert_eq!(why(short), Some(CommandSyndrome::MkeyListBytes));
    let size = CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE;
    let cut = indirect(&pair.b, KLM, (0, 8), &list, |create| _ = create.set(size, 2));
    assert_eq!(why(cut), Some(CommandSyndrome::MkeyListLength));
    let huge = indirect(&pair.b, KLM, (0, 8), &list, |create| _ = create.set(size, 1 << 20));
    assert_eq!(why(huge), Some(CommandSyndrome::MkeyListSize));
    let mode = indirect(&pair.b, (AccessMode::Pa, 0), (0, 8), &list, |_| ());
    assert_eq!(why(mode), Some(CommandSyndrome::MkeyMode));
    // To be filled by work requests: for now they open nothing.
    for mode in [AccessMode::Klm, AccessMode::Mtt] {
        let mut pair = Pair::new(&Connection::default());
        let create = |room| {
            indirect(&pair.b, (mode, 0), (0, 4096), &[], |create| {
                create
                    .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
                    .set(Mkc::UMR_EN, true)
                    .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, room);
            })
        };
        if mode == AccessMode::Klm {
            assert_eq!(why(create(0)), Some(CommandSyndrome::MkeyNoList));
        }
        let empty = create(1);
        assert_eq!(write(&mut pair, &[1; 8], 0, empty.unwrap()), Some(Syndrome::RemoteAccess));
    }
}
