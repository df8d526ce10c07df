//! A side that posts nothing notices that its peer has died.

use std::time::{Duration, Instant};

use barewire::{Endpoint, InterfaceConfig, TransportId, Worker};

use crate::place::Place;
use crate::processes::{self, End, Peer};
use crate::support::{DEADLINE, watch_errors};

const INTERVAL: Duration = Duration::from_millis(400);
/// 67 ms before the first retry.
const ACK_TIMEOUT: u8 = 14;
/// For processes that wait for a CPU.
const SLACK: Duration = Duration::from_secs(10);

fn config() -> InterfaceConfig {
    processes::config().ack_timeout(ACK_TIMEOUT).keepalive(Some(INTERVAL))
}

/// The documented time from the death of a peer to its report.
fn detection(transport: TransportId) -> Duration {
    let retries = match transport {
        TransportId::RcMlx5 | TransportId::RcVerbs | TransportId::XrcMlx5 | TransportId::DcMlx5 => {
            // The software HCA waits 1, 2 and then 4 times that long.
            27 * Duration::from_nanos(4096 << ACK_TIMEOUT)
        }
        TransportId::UdMlx5 | TransportId::UdVerbs => {
            config().peer_timeout + Duration::from_nanos(4096 << ACK_TIMEOUT)
        }
        _ => Duration::ZERO,
    };
    2 * INTERVAL + retries
}

/// Two peers are idle, and one is killed. `turn` makes progress.
fn a_peer_dies(place: &Place, turn: impl Fn(&mut Worker)) {
    let Some([here, there]) = place.ends() else { return };
    let (mut doomed, mut living) = (Peer::start(there), Peer::start(there));
    let mut end = End::open_with(here.0, here.1, &config());
    let errors = watch_errors(&end.interface);
    let other = Endpoint::new(&end.interface).unwrap();
    doomed.tell(&end.introduction_of(&end.endpoint));
    living.tell(&end.introduction_of(&other));
    processes::connect(&end.endpoint, &doomed.introduction);
    processes::connect(&other, &living.introduction);
    let idle_for = |end: &mut End, time: Duration| {
        let start = Instant::now();
        while start.elapsed() < time {
            turn(&mut end.worker);
        }
    };
    idle_for(&mut end, 3 * INTERVAL);
    assert!(errors.borrow().is_empty(), "{}: {:?}", place.name, errors.borrow());

    doomed.kill();
    let killed = Instant::now();
    let limit = (detection(end.interface.transport()) + SLACK).min(DEADLINE);
    while errors.borrow().is_empty() {
        turn(&mut end.worker);
        assert!(killed.elapsed() < limit, "{}: not reported within {limit:?}", place.name);
    }
    assert!(end.endpoint.error().is_some(), "{}: {:?}", place.name, errors.borrow());
    idle_for(&mut end, 2 * INTERVAL);
    assert_eq!(errors.borrow().len(), 1, "{}: {:?}", place.name, errors.borrow());
    assert!(other.error().is_none(), "{}: {:?}", place.name, other.error());
    // The user has posted nothing, and gets no messages from the peer's probes.
    let counters = end.interface.counters();
    assert_eq!((counters.posted, counters.no_resource), (0, 0), "{}", place.name);
    assert_eq!(end.interface.unhandled(), 0, "{}", place.name);
}

pub(crate) fn a_dead_peer_is_reported_to_a_side_that_only_polls(place: &Place) {
    a_peer_dies(place, |worker| {
        if worker.progress() == 0 {
            std::thread::yield_now();
        }
    });
}

pub(crate) fn a_dead_peer_is_reported_to_a_side_that_sleeps(place: &Place) {
    if place.ends().is_none() {
        return;
    }
    let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (start, before) = (Instant::now(), cpu());
    a_peer_dies(place, |worker| {
        worker.wait(Some(Duration::from_millis(100))).unwrap();
    });
    let after = cpu();
    let nanoseconds =
        (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
    let used = Duration::from_nanos(nanoseconds as u64);
    assert!(used < start.elapsed() / 4, "{}: {used:?} of {:?}", place.name, start.elapsed());
}
