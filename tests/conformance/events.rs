//! Sleeping until an event, over transports with event descriptors.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use barewire::{
    Armed, DeviceId, Domain, Endpoint, EventError, Flags, Interface, InterfaceConfig, PeerAddress,
    PostError, Posted, Worker,
};

use crate::place::Place;
use crate::support::{DEADLINE, Pair, collect};

fn can_sleep(interface: &Interface) -> bool {
    interface.attributes().flags.contains(Flags::EVENT_FD)
}

/// Arms a worker that has nothing left to do.
fn arm_when_idle(worker: &mut Worker, name: &str) {
    let start = Instant::now();
    loop {
        match worker.arm() {
            Ok(Armed::Ready) => worker.progress(),
            Ok(_) => return,
            Err(error) => panic!("{name}: {error}"),
        };
        assert!(start.elapsed() < DEADLINE, "{name}: never idle");
    }
}

pub(crate) fn who_cannot_tell_says_so(place: &Place) {
    let mut pair = place.pair();
    let Pair { name, worker, client, .. } = &mut pair;
    match worker.arm() {
        Ok(_) => assert!(can_sleep(&client.interface), "{name}"),
        Err(error @ EventError::Missing { .. }) => {
            assert!(!can_sleep(&client.interface), "{name}: {error}");
            assert!(error.to_string().contains(client.interface.transport().name()), "{error}");
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

pub(crate) fn an_idle_worker_sleeps_until_the_time_is_over(place: &Place) {
    let mut pair = place.pair();
    if !can_sleep(&pair.client.interface) {
        return;
    }
    arm_when_idle(&mut pair.server_worker, pair.name);
    arm_when_idle(&mut pair.worker, pair.name);
    let start = Instant::now();
    while start.elapsed() < DEADLINE {
        let before = Instant::now();
        // Late events of the connection may occur in between.
        if pair.worker.wait(Some(Duration::from_millis(20))).unwrap() == 0 {
            assert!(before.elapsed() >= Duration::from_millis(20), "{}", pair.name);
            break;
        }
    }
    assert!(start.elapsed() < DEADLINE, "{}", pair.name);
}

/// `arm` reports messages that arrived before it, the descriptor those after it.
pub(crate) fn a_message_wakes_an_armed_worker(place: &Place) {
    let mut pair = place.pair();
    if !can_sleep(&pair.client.interface) || pair.is_self() {
        return;
    }
    let inbox = collect(&pair.server.interface, 1);
    for round in 0..50 {
        let start = Instant::now();
        loop {
            arm_when_idle(&mut pair.server_worker, pair.name);
            match pair.client.endpoint.am_short(1, round, b"wake up") {
                Ok(()) => break,
                Err(error) => assert_eq!(error, PostError::NoResource, "{}", pair.name),
            }
            // The rest may need a response of the other end.
            pair.worker.progress();
            pair.server_worker.progress();
            assert!(start.elapsed() < DEADLINE, "{}: no room in round {round}", pair.name);
        }
        while inbox.borrow().is_empty() {
            pair.worker.progress();
            pair.server_worker.wait(Some(Duration::from_millis(100))).unwrap();
            assert!(start.elapsed() < DEADLINE, "{}: round {round}", pair.name);
        }
        inbox.borrow_mut().clear();
    }
}

/// What the threads of [`both_ends_sleep_and_no_wake_up_is_lost`] send each other.
type Addresses = Vec<u8>;

/// Echoes `rounds` messages, and sleeps between them.
fn echo(
    (transport, device): (&str, &str),
    rounds: u64,
    starts: bool,
    tell: &mpsc::Sender<Addresses>,
    told: &mpsc::Receiver<Addresses>,
) {
    let mut worker = Worker::new();
    let domain = Domain::open(&DeviceId::new(transport.parse().unwrap(), device)).unwrap();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
    let endpoint = Endpoint::new(&interface).unwrap();
    tell.send(endpoint.address().to_bytes()).unwrap();
    let address = told.recv_timeout(DEADLINE).unwrap();
    endpoint.connect(&PeerAddress::from_bytes(&address).unwrap()).unwrap();
    let received = Rc::new(Cell::new(0));
    let seen = Rc::clone(&received);
    interface.set_handler(2, move |_| seen.set(seen.get() + 1)).unwrap();
    let (mut sent, mut longest) = (0, Duration::ZERO);
    while received.get() < rounds || sent < rounds {
        if sent < received.get() + u64::from(starts) && sent < rounds {
            match endpoint.am_short(2, sent, &[7; 8]) {
                Ok(()) => sent += 1,
                Err(PostError::NoResource) => {}
                Err(error) => panic!("{transport}: {error}"),
            }
        }
        if sent == rounds && received.get() == rounds {
            break;
        }
        let before = Instant::now();
        worker.wait(Some(DEADLINE / 2)).unwrap();
        longest = longest.max(before.elapsed());
        assert!(
            longest < DEADLINE / 2,
            "{transport}: a wake-up was lost after {} messages",
            received.get()
        );
    }
    // The other end waits for the last response, so this end stays until it has arrived.
    while endpoint.flush(barewire::FlushMode::Remote, None) == Ok(Posted::InProgress) {
        worker.progress();
    }
    // The other thread may have ended.
    let _ = tell.send(Addresses::default());
    while told.try_recv() == Err(mpsc::TryRecvError::Empty) {
        worker.progress();
    }
}

/// Two threads, each of which sleeps until a message of the other arrives.
pub(crate) fn both_ends_sleep_and_no_wake_up_is_lost(place: &Place) {
    let Some([one, other]) = place.ends() else { return };
    let other = (other.0.to_owned(), other.1.to_owned());
    let rounds = 1000;
    let (to_other, of_one) = mpsc::channel();
    let (to_one, of_other) = mpsc::channel();
    let other = thread::spawn(move || echo((&other.0, &other.1), rounds, false, &to_one, &of_one));
    echo(one, rounds, true, &to_other, &of_other);
    other.join().unwrap();
}
