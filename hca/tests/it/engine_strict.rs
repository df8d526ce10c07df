//! The strict checks: every mistake of a driver is named, and nothing that is right is.

use std::time::Duration;

use crate::support::{self, Connection, Node, Pair, Wqe, pattern};
use barewire_hca::{Config, Fabric, Faults, Finding, Mode, ReservedBits, Strict, WireKind};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::wqe::{ControlFlags, Opcode};

fn pair(mode: Mode) -> Pair {
    pair_with(mode, ReservedBits::Refuse)
}

fn pair_with(mode: Mode, reserved_bits: ReservedBits) -> Pair {
    let wire = WireKind::Fabric(Fabric::new());
    let config =
        Config::default().mode(mode).wire(wire).strict(Strict::Report).reserved_bits(reserved_bits);
    Pair::over(Node::open(config.clone()), Node::open(config), &Connection::default())
}

/// Posts a WQE that `spoil` has changed, and gives the findings as text.
fn findings(wqe: &Wqe, spoil: impl FnOnce(&mut [u8])) -> Vec<String> {
    let mut pair = pair(Mode::Stepped);
    // An index and a number that are not zero.
    pair.qa.post(&Wqe::new(Opcode::Nop));
    pair.settle();
    let mut bytes = wqe.bytes(1, pair.qa.number);
    spoil(&mut bytes);
    // The device can go by the ds count only to find what is behind.
    let next = 1 + u16::from(bytes[7] & 0x3f).div_ceil(4).max(1);
    let (index, bytes) = pair.qa.place_bytes(bytes);
    pair.qa.ring(&bytes);
    // What lies behind it is flushed.
    pair.qa.place(&Wqe::new(Opcode::Nop));
    pair.settle();
    let syndromes: Vec<_> =
        pair.qa.send_cq.drain().iter().map(|one| (one.index, one.syndrome)).collect();
    assert_eq!(
        syndromes,
        [
            (0, None),
            (index, Some(Syndrome::LocalQpOperation)),
            (next, Some(Syndrome::WorkRequestFlushed))
        ]
    );
    pair.a
        .device
        .take_reports()
        .iter()
        .map(|report| format!("{report}").replace(&format!("{:#x}", pair.qa.number), "N"))
        .collect()
}

fn write(length: usize) -> Wqe {
    Wqe::new(Opcode::RdmaWrite).remote(0x1000, 0x1234).inline(&pattern(length, 1))
}

#[test]
fn each_field_of_the_control_segment_is_checked() {
    // The doorbell carries the same bytes, so it is wrong first.
    assert_eq!(
        findings(&write(8), |wqe| wqe[2] ^= 4),
        [
            "QP N WQE 5: doorbell: names WQE 5, but the doorbell record posts only up to 3",
            "QP N WQE 1: control segment: index is 5, must be 1",
        ]
    );
    assert_eq!(
        findings(&write(8), |wqe| wqe[4] = 1),
        [
            "QP 0x10040 WQE 1: doorbell: names QP 0x10040, which does not use UAR page 1",
            "QP N WQE 1: control segment: QP number is 0x10040, must be N"
        ]
    );
    for opcode in [0x0e, 0x1b, 0xff] {
        let want = format!(
            "QP N WQE 1: control segment: opcode is {opcode:#04x}, which an RC send queue does not know"
        );
        assert_eq!(findings(&write(8), |wqe| wqe[3] = opcode), [want]);
    }
    for (byte, value, what) in [
        (0, 0x01, "opcode modifier: reserved bits are 0x1"),
        (7, 0xc3, "QP number and ds: reserved bits are 0xc0"),
        (8, 0x80, "signature and stream: reserved bits are 0x800000"),
        (10, 0x01, "signature and stream: reserved bits are 0x1"),
        (11, 0x19, "flags: reserved bits are 0x11"),
    ] {
        let want = format!("QP N WQE 1: control segment: {what}, must be 0");
        assert_eq!(findings(&write(8), |wqe| wqe[byte] = value), [want]);
    }
    assert_eq!(
        findings(&write(8), |wqe| wqe[11] = 0xa0),
        ["QP N WQE 1: control segment: fence mode is 0x5, must be a fence mode from 0 to 4"]
    );
}

/// As hardware does: UCX and libmlx5 leave bytes of earlier WQEs in reserved fields.
#[test]
fn reserved_bits_are_ignored_by_default() {
    let mut pair = pair_with(Mode::Stepped, ReservedBits::default());
    let target = pair.b.region(64);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key).inline(&[0xab; 8]);
    let mut bytes = wqe.bytes(0, pair.qa.number);
    for (byte, bits) in
        [(0, 1), (7, 0xc0), (8, 0xff), (9, 0xff), (10, 0xff), (11, 0x11), (28, 0xff), (31, 0xff)]
    {
        bytes[byte] |= bits;
    }
    let (_, bytes) = pair.qa.place_bytes(bytes);
    pair.qa.ring(&bytes);
    pair.settle();
    assert_eq!(pair.a.device.take_reports(), []);
    assert!(pair.qa.send_cq.drain().iter().all(support::Completion::is_ok));
    assert_eq!(target.memory.read(0, 8), [0xab; 8]);
}

#[test]
fn the_ds_count_must_fit_the_segments() {
    let ds = |got, wanted| format!("QP N WQE 1: control segment: ds is {got}, must be {wanted}");
    assert_eq!(findings(&write(8), |wqe| wqe[7] = 0), [ds(0, "at least 1")]);
    assert_eq!(
        findings(&Wqe::new(Opcode::RdmaWrite), |_| ()),
        [ds(1, "room for the remote address segment")]
    );
    let atomic = Wqe::new(Opcode::AtomicFetchAdd).remote(0, 0);
    assert_eq!(findings(&atomic, |_| ()), [ds(2, "room for the atomic segment")]);
    assert_eq!(
        findings(&write(100), |wqe| wqe[7] = 3),
        ["QP N WQE 1: inline segment: length is 100, must be at most the 12 bytes that ds leaves"]
    );
}

#[test]
fn data_segments_are_checked() {
    let value = |what, got, wanted| [format!("QP N WQE 1: {what} is {got}, must be {wanted}")];
    let sent = Wqe::new(Opcode::Send).data(0x1000, 1, 0x1234);
    assert_eq!(
        findings(&sent, |wqe| wqe[16..20].fill(0)),
        value("data segment: byte count", "0x0", "from 1 to 2^31-1: 0 would mean 2^31")
    );
    let read = Wqe::new(Opcode::RdmaRead).remote(0, 0).inline(&[1; 4]);
    assert_eq!(
        findings(&read, |_| ()),
        value("data segment: byte count", "0x80000004", "not inline: its bytes are to be written")
    );
    let atomic = Wqe::new(Opcode::AtomicFetchAdd).remote(0, 0).atomic(1, 0).data(0, 4, 0);
    assert_eq!(
        findings(&atomic, |_| ()),
        value("data segment: length of an atomic's result", "0x4", "8")
    );
    let reserved = Wqe::new(Opcode::RdmaWrite).remote(0, 0);
    assert_eq!(
        findings(&reserved, |wqe| wqe[31] = 1),
        ["QP N WQE 1: remote address segment: reserved bits are 0x1, must be 0"]
    );
    let long = Wqe::new(Opcode::RdmaWrite).remote(0, 0).data(0, (1 << 30) + 1, 0);
    assert_eq!(
        findings(&long, |_| ()),
        ["QP N WQE 1: data segments: message length is 1073741825, must be at most 1073741824"]
    );
}

#[test]
fn a_wqe_must_be_posted_as_a_whole() {
    let mut pair = pair(Mode::Stepped);
    let bytes = write(200).bytes(0, pair.qa.number);
    // The doorbell record gets one WQEBB of four.
    pair.qa.place_bytes(bytes[..64].to_vec());
    pair.qa.ring(&bytes[..8]);
    pair.settle();
    let reports = pair.a.device.take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].finding, Finding::Posted { got: 4, wanted: 1 });
    // It completes, and nothing that was not posted does.
    let done = pair.qa.send_cq.drain();
    assert!(done.len() == 1 && done[0].syndrome == Some(Syndrome::LocalQpOperation), "{done:?}");
}

#[test]
fn more_than_the_ring_holds_is_an_overflow() {
    let mut pair = pair(Mode::Stepped);
    for _ in 0..65 {
        pair.qa.place(&Wqe::new(Opcode::Nop));
    }
    let bytes = Wqe::new(Opcode::Nop).bytes(64, pair.qa.number);
    pair.qa.ring(&bytes[..8]);
    pair.settle();
    let reports = pair.a.device.take_reports();
    assert_eq!(reports[0].finding, Finding::Overflow { queue: "send", got: 65, wanted: 64 });
}

#[test]
fn blueflame_bytes_must_be_the_rings() {
    for (length, wrong) in [(8, 8), (8, 47), (40, 77), (200, 128), (200, 231)] {
        let mut pair = pair(Mode::Stepped);
        let (_, bytes) = pair.qa.place(&write(length));
        let mut pushed = bytes.clone();
        pushed[wrong] ^= 0xff;
        pair.qa.ring(&pushed);
        pair.settle();
        let reports = pair.a.device.take_reports();
        let Finding::BlueFlame { offset, got, wanted } = reports[0].finding else {
            panic!("{reports:?}")
        };
        assert_eq!((reports.len(), offset), (1, wrong / 8 * 8));
        assert_ne!(got, wanted);
    }
}

#[test]
fn a_burst_that_stops_halfway_is_noticed() {
    let mut pair = pair(Mode::Stepped);
    let (_, bytes) = pair.qa.place(&write(100));
    pair.qa.ring(&bytes[..64]);
    pair.settle();
    let reports = pair.a.device.take_reports();
    assert!(
        matches!(reports[..], [ref one] if matches!(one.finding, Finding::BlueFlame { offset: 64, .. })),
        "{reports:?}"
    );
}

#[test]
fn a_doorbell_must_name_the_wqe() {
    let mut pair = pair(Mode::Stepped);
    let (_, bytes) = pair.qa.place(&Wqe::new(Opcode::Nop));
    let mut rung = bytes.clone();
    rung[0] = 1;
    pair.qa.ring(&rung[..8]);
    pair.settle();
    let got = u64::from_be_bytes(rung[..8].try_into().unwrap());
    let wanted = u64::from_be_bytes(bytes[..8].try_into().unwrap());
    let reports = pair.a.device.take_reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].finding, Finding::Doorbell { got, wanted });

    let ahead = Wqe::new(Opcode::Nop).bytes(3, pair.qa.number);
    pair.qa.ring(&ahead[..8]);
    pair.settle();
    let reports = pair.a.device.take_reports();
    assert_eq!(reports[0].finding, Finding::DoorbellAhead { index: 3, wanted: 1 });
}

#[test]
fn right_doorbells_of_every_kind_pass() {
    let mut pair = pair(Mode::Stepped);
    let target = pair.b.region(4096);
    let wqe = |round: u64, length| {
        Wqe::new(Opcode::RdmaWrite)
            .remote(target.address(), target.key)
            .inline(&pattern(length, round))
    };
    for round in 0..400 {
        let length = [0, 5, 12, 60, 100, 200, 230][round as usize % 7];
        match round % 5 {
            0 | 1 => {
                pair.qa.post(&wqe(round, length));
            }
            2 => {
                pair.qa.post_plain(&wqe(round, length));
            }
            // A list: several WQEs, the doorbell of the last.
            3 => {
                pair.qa.place(&wqe(round, length));
                pair.qa.place(&wqe(round + 1, 30));
                pair.qa.post_plain(&wqe(round + 2, length));
            }
            // Several posts between two passes.
            _ => {
                pair.qa.post(&wqe(round, length));
                pair.qa.post_plain(&wqe(round, 8));
                pair.qa.post(&wqe(round + 1, 40).flags(ControlFlags::FENCE));
            }
        }
        pair.settle();
        assert!(pair.qa.send_cq.drain().iter().all(support::Completion::is_ok));
    }
    assert_eq!(pair.a.device.take_reports(), []);
}

#[test]
fn what_another_queue_pair_pushed_is_not_held_against_one() {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    // Both ring through one page. The first is in error, so the device does not execute its WQEs.
    let mut failed = Pair::over(a.clone(), b.clone(), &Connection::default());
    let mut good = Pair::over(a.clone(), b, &Connection::default());
    failed.qa.to_error();
    for _ in 0..4 {
        failed.qa.post(&write(120));
        good.qa.post_plain(&write(100));
        a.device.step();
    }
    assert_eq!(a.device.counters().findings, 0);
}

#[test]
fn a_driver_that_is_preempted_in_a_burst_is_not_blamed() {
    let mut pair = pair(Mode::Thread);
    let target = pair.b.region(4096);
    let wqe = |byte| {
        Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key).inline(&[byte; 100])
    };
    for round in 0..6 {
        let (_, bytes) = pair.qa.place(&wqe(round));
        // Only a part of the burst is stored while the device works; the rest follows in the same
        // half.
        let stored = [8, 64, 72, 16, 128, 120][usize::from(round)];
        pair.qa.ring(&bytes[..stored]);
        assert!(pair.qa.send_cq.wait().is_ok());
        std::thread::sleep(Duration::from_millis(20));
        pair.qa.finish_burst(&bytes);
    }
    pair.qa.post(&wqe(7));
    assert!(pair.qa.send_cq.wait().is_ok());
    assert_eq!(pair.a.device.take_reports(), []);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_wrong_burst_is_noticed_once_the_driver_has_moved_on() {
    let mut pair = pair(Mode::Thread);
    let (_, bytes) = pair.qa.place(&Wqe::new(Opcode::Nop));
    let mut pushed = bytes.clone();
    pushed[12] = 1;
    pair.qa.ring(&pushed);
    assert!(pair.qa.send_cq.wait().is_ok());
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(pair.a.device.take_reports(), []);
    pair.qa.post(&Wqe::new(Opcode::Nop));
    assert!(pair.qa.send_cq.wait().is_ok());
    let reports = pair.a.device.take_reports();
    assert!(matches!(reports[..], [ref one] if one.index == 0), "{reports:?}");
}
