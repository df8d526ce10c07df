//! What a device costs while nothing happens, and how soon it is back.

use std::fs;
use std::time::{Duration, Instant};

use crate::alone;
use crate::support::{Connection, Node, Pair, Qp, Wqe};
use barewire_hca::{Config, DoorbellWake, Faults, Mode};
use barewire_layouts::wqe::Opcode;

/// The time for ten wake-ups on a busy machine.
const WAKES: Duration = Duration::from_mins(1);

/// Nanoseconds that the devices' threads of this process have run.
fn device_time() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs").flatten();
    tasks
        .filter(|task| {
            fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.trim() == "barewire-hca")
        })
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// A queue pair of the device that is connected to itself.
fn to_itself(node: &Node) -> Qp {
    let mut qp = Qp::new(node);
    let number = qp.number;
    qp.connect(node, number, &Connection::default(), (1, 1));
    qp
}

#[test]
fn an_idle_device_sleeps_and_the_next_doorbell_wakes_it() {
    let _alone = alone();
    let node = Node::threaded(Faults::default());
    let mut qp = to_itself(&node);
    let region = node.region(64);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(region.address(), region.key).inline(b"12345678");
    qp.post(&wqe);
    assert!(qp.send_cq.wait().is_ok());

    let how = node.device.doorbell_wake();
    println!("doorbells are noticed by: {how:?}");
    std::thread::sleep(Duration::from_millis(10));
    let (start, before) = (Instant::now(), device_time());
    std::thread::sleep(Duration::from_millis(400));
    let (wall, used) = (start.elapsed(), device_time() - before);
    println!("idle: {used} ns of {wall:?}");
    if how == DoorbellWake::Store {
        assert!(u128::from(used) * 100 < wall.as_nanos(), "more than 1 %: {used} ns of {wall:?}");
    }

    // A device that other programs keep from running is not asleep yet: its next round is another
    // attempt.
    let woken = || node.device.counters().doorbell_wakes;
    let (before, start) = (woken(), Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(12));
        qp.post(&wqe);
        assert!(qp.send_cq.wait().is_ok());
        if how != DoorbellWake::Store || woken() >= before + 10 {
            break;
        }
        assert!(start.elapsed() < WAKES, "{:?}", node.device.counters());
    }
}

#[test]
fn a_caller_that_drives_a_device_does_the_work_of_its_thread() {
    let _alone = alone();
    let node = Node::threaded(Faults::default());
    let mut qp = to_itself(&node);
    let region = node.region(64);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(region.address(), region.key).inline(b"12345678");
    let (start, before, mut done) = (Instant::now(), device_time(), 0);
    while start.elapsed() < Duration::from_millis(300) {
        qp.post(&wqe);
        loop {
            node.device.drive();
            if let Some(completion) = qp.send_cq.poll() {
                assert!(completion.is_ok());
                break;
            }
            assert!(start.elapsed() < WAKES, "{done} writes: {:?}", node.device.counters());
        }
        done += 1;
    }
    let (wall, used) = (start.elapsed(), device_time() - before);
    println!("{done} writes, the thread ran for {used} ns of {wall:?}");
    assert!(u128::from(used) * 2 < wall.as_nanos(), "{used} ns of {wall:?}");
    // The thread goes on when the caller does not.
    qp.post(&wqe);
    assert!(qp.send_cq.wait().is_ok());
    // Its sleep ends early for a caller that has rung a doorbell.
    std::thread::sleep(Duration::from_millis(15));
    qp.post(&wqe);
    node.device.drive_asleep();
    assert!(qp.send_cq.wait().is_ok());
}

#[test]
fn commands_do_not_wait_for_a_sleeping_device() {
    let _alone = alone();
    // Resetting a queue pair stores to the UAR page, which is closed while the device sleeps.
    let mut pair = Pair::over(
        Node::threaded(Faults::default()),
        Node::threaded(Faults::default()),
        &Connection::default(),
    );
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(15));
        let start = Instant::now();
        pair.qa.reset();
        assert!(start.elapsed() < Duration::from_secs(1));
        let number = pair.qb.number;
        pair.qa.connect(&pair.b, number, &Connection::default(), (1, 1));
    }
    // A device that ends while its pages are closed, and a doorbell after its end.
    std::thread::sleep(Duration::from_millis(15));
    let (page, Pair { a, qa, .. }) = (pair.a.page.clone(), pair);
    drop((a, qa));
    // SAFETY: inside the page, aligned; the page is held.
    unsafe { page.as_ptr().add(0x800).cast::<u64>().write_volatile(1) };
}

#[test]
fn without_a_userfaultfd_doorbells_are_seen_by_looking() {
    let _alone = alone();
    let node = Node::open(Config::default().mode(Mode::PollingThread));
    let mut qp = to_itself(&node);
    assert!(
        matches!(node.device.doorbell_wake(), DoorbellWake::Polling(why) if why.contains("not asked for"))
    );
    // Before it naps, while it naps, and after a second, when it naps deeply.
    for rest in [0, 5, 1200] {
        std::thread::sleep(Duration::from_millis(rest));
        qp.post(&Wqe::new(Opcode::Nop));
        assert!(qp.send_cq.wait().is_ok());
    }
    assert_eq!(node.device.counters().doorbell_wakes, 0);
    assert!(!node.device.step(), "it has a thread");
}
