//! A device's life: opening, its thread, many callers, and its end.

use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::alone;
use crate::support::rig::{CQ_RING, QP_DOORBELL, QP_RINGS, Rig};
use barewire_hca::{
    CommandSyndrome, Config, Device, Fabric, Mode, ObjectCounts, OpenError, Strict, UmemAccess,
    UmemError, WireKind,
};
use barewire_layouts::be::Be32;
use barewire_layouts::command::CommandStatus;
use barewire_layouts::cqe::{CqeOpcode, INITIAL_OP_OWN, OP_OWN_OFFSET};
use barewire_layouts::doorbell::BLUEFLAME_OFFSET;
use barewire_layouts::wqe::{ControlFlags, ControlSegment, Opcode};
use zerocopy::IntoBytes;

/// This process's device threads, as directories of /proc.
fn device_threads() -> Vec<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux has it").flatten();
    let of_device = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "barewire-hca")
    };
    tasks.map(|task| task.path()).filter(of_device).collect()
}

/// Waits until there are `count` device threads: thread names and ends become visible with a delay.
fn expect_threads(count: usize) -> Vec<PathBuf> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let threads = device_threads();
        if threads.len() == count {
            return threads;
        }
        assert!(Instant::now() < deadline, "{threads:?}, not {count}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn fabric() -> Config {
    Config::default().wire(WireKind::Fabric(Fabric::new()))
}

#[test]
fn a_device_is_shared_and_sent() {
    fn check<T: Clone + Send + Sync + std::fmt::Debug>() {}
    check::<Device>();
}

#[test]
fn the_thread_ends_with_the_last_handle() {
    let _alone = alone();
    expect_threads(0);
    let device = Device::open(fabric()).unwrap();
    let other = device.clone();
    expect_threads(1);
    drop(device);
    thread::sleep(Duration::from_millis(20));
    expect_threads(1);
    assert_eq!(other.objects(), ObjectCounts::default());
    let start = Instant::now();
    drop(other);
    assert!(start.elapsed() < Duration::from_secs(5), "a sleeping thread is woken to end");
    expect_threads(0);
}

#[test]
fn a_stepped_device_has_no_thread() {
    let _alone = alone();
    let device = Device::open(fabric().mode(Mode::Stepped)).unwrap();
    thread::sleep(Duration::from_millis(20));
    expect_threads(0);
    assert!(!device.step(), "there is nothing to do");
}

#[test]
fn addresses_belong_to_one_device() {
    let _alone = alone();
    let first = Device::open(Config::default()).unwrap();
    let address = first.address();
    let std::net::IpAddr::V4(ipv4) = address else { panic!("{address} is no IPv4 address") };
    assert_eq!(ipv4.octets()[0], 127);
    assert_eq!(first.gid()[12..], ipv4.octets());
    let error = Device::open(Config::default().address(Some(address))).unwrap_err();
    assert!(matches!(error, OpenError::Bind { address: taken, .. } if taken == address), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    drop(first);
    drop(Device::open(Config::default().address(Some(address))).unwrap());

    for address in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
        let error = Device::open(Config::default().address(Some(address.into()))).unwrap_err();
        assert!(matches!(error, OpenError::Address { .. }), "{error}");
    }
    // An address that no interface has (TEST-NET-1), unless the host lets anyone have any.
    let foreign = Some(Ipv4Addr::new(192, 0, 2, 1).into());
    let any = fs::read_to_string("/proc/sys/net/ipv4/ip_nonlocal_bind")
        .is_ok_and(|value| value.trim() == "1");
    let error = Device::open(Config::default().address(foreign)).err();
    assert!(any || matches!(error, Some(OpenError::Bind { .. })), "{error:?}");

    let fabric = Fabric::new();
    let on = |address| {
        Device::open(Config::default().address(address).wire(WireKind::Fabric(fabric.clone())))
    };
    let first = on(None).unwrap();
    assert!(matches!(on(Some(first.address())), Err(OpenError::AddressTaken { .. })));
    assert_ne!(on(None).unwrap().address(), first.address());
}

/// Returns the processor time of a thread in clock ticks of 10 ms: fields 14 and 15 of its stat
/// line.
fn ticks(task: &Path) -> u64 {
    let stat = fs::read_to_string(task.join("stat")).expect("the thread lives");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn an_idle_thread_sleeps() {
    let _alone = alone();
    let rig = Rig::open(Config::default());
    let task = &expect_threads(1)[0];
    let mut used = [0; 2];
    for (used, with_queue_pair) in used.iter_mut().zip([false, true]) {
        if with_queue_pair {
            let cqn = rig.create_cq(|_| ()).unwrap();
            let qpn = rig.create_qp(cqn, |_| ()).unwrap();
            rig.connect(qpn, (rig.device.address(), qpn)).unwrap();
        }
        thread::sleep(Duration::from_millis(50));
        let before = ticks(task);
        thread::sleep(Duration::from_secs(1));
        *used = ticks(task) - before;
    }
    // Out of 100 ticks: none without queue pairs, and what a thousand looks cost with one.
    assert!(used[0] <= 2 && used[1] <= 20, "ticks used in a second: {used:?}");
}

#[test]
fn a_sleeping_thread_sees_a_doorbell() {
    let _alone = alone();
    let rig = Rig::open(fabric());
    let cqn = rig.create_cq(|_| ()).unwrap();
    let qpn = rig.create_qp(cqn, |_| ()).unwrap();
    // SAFETY: inside the rig's memory; the byte is the owner byte of the CQ's first entry.
    let owner =
        unsafe { AtomicU8::from_ptr(rig.memory.add(CQ_RING as usize + OP_OWN_OFFSET).as_ptr()) };
    owner.store(INITIAL_OP_OWN, Ordering::Relaxed);
    rig.connect(qpn, (rig.device.address(), qpn)).unwrap();
    thread::sleep(Duration::from_millis(20));

    let nop = ControlSegment::new(Opcode::Nop, 0, qpn, 1, ControlFlags::COMPLETION, 0);
    // The receive ring of 8 times 64 bytes lies before the send ring.
    rig.write(QP_RINGS + 8 * 64, nop.as_bytes());
    rig.write(QP_DOORBELL + 4, Be32::new(1).as_bytes());
    let page = rig.device.uar_page(rig.uar).unwrap();
    let word = u64::from_ne_bytes(nop.as_bytes()[..8].try_into().unwrap());
    // SAFETY: inside the page, aligned.
    unsafe { page.as_ptr().add(BLUEFLAME_OFFSET).cast::<u64>().write_volatile(word) };

    let deadline = Instant::now() + Duration::from_secs(20);
    while owner.load(Ordering::Acquire) == INITIAL_OP_OWN {
        assert!(Instant::now() < deadline, "no completion; {:?}", rig.device.take_reports());
        thread::yield_now();
    }
    assert_eq!(owner.load(Ordering::Acquire) >> 4, CqeOpcode::Requester as u8);
    assert_eq!(rig.device.take_reports(), []);
}

#[test]
fn many_callers_keep_the_count() {
    let _alone = alone();
    let rig = Rig::open(Config::default());
    let device = &rig.device;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let mut words = [0_u64; 64];
                let start = NonNull::from(&mut words).cast();
                for _ in 0..200 {
                    // SAFETY: the array lives until it is deregistered, and is not accessed
                    // meanwhile.
                    let umem = unsafe { device.register_umem(start, 512, UmemAccess::LOCAL_WRITE) }
                        .unwrap();
                    assert!(device.objects().umems >= 2);
                    let _ = device.counters();
                    // SAFETY: this thread's registration; the number is not given again so soon.
                    let deregister = || unsafe { device.deregister_umem(umem) };
                    deregister().unwrap();
                    assert_eq!(deregister(), Err(UmemError::Unknown { id: umem }));
                }
            });
        }
    });
    assert_eq!(rig.device.objects().umems, 1);
}

#[test]
fn a_device_that_panicked_says_so() {
    let _alone = alone();
    let rig = Rig::open(fabric().mode(Mode::Stepped).strict(Strict::Panic));
    let cqn = rig.create_cq(|_| ()).unwrap();
    let qpn = rig.create_qp(cqn, |_| ()).unwrap();
    rig.connect(qpn, (rig.device.address(), qpn)).unwrap();
    // A doorbell of a queue pair that does not exist: with `Strict::Panic` a finding is a panic.
    let page = rig.device.uar_page(rig.uar).unwrap();
    // SAFETY: inside the page, aligned.
    unsafe { page.as_ptr().add(BLUEFLAME_OFFSET).cast::<u64>().write_volatile(u64::MAX) };
    let panic = catch_unwind(AssertUnwindSafe(|| while rig.device.step() {}));
    assert!(panic.is_err());
    assert_eq!(rig.alloc_pd(), Err((CommandStatus::Internal, CommandSyndrome::Stopped)));
    assert_eq!(rig.deregister(rig.umem), Err(UmemError::Stopped));
    assert!(!rig.device.step());
    assert_eq!(rig.device.objects().queue_pairs, 1);
    assert!(rig.device.counters().findings > 0);
}
