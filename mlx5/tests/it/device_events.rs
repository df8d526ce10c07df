//! Asynchronous events of a device: what no completion reports.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::channel::{DeviceEvent, DeviceEvents};
use barewire_mlx5::queue::shared_receive::{List, SharedReceiveQueue};
use barewire_mlx5::request::{Inline, Write};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, ProtectionDomain,
    QpState, RcConfig, RcPath, RcQueuePair, Uar, hca,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const DEADLINE: Duration = Duration::from_mins(1);

fn is_readable(descriptor: BorrowedFd<'_>, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&timeout)).unwrap() > 0
}

/// Sleeps on the descriptor until there is an event.
fn wait(events: &dyn DeviceEvents) -> DeviceEvent {
    let start = Instant::now();
    loop {
        assert!(is_readable(events.descriptor().unwrap(), DEADLINE), "no event");
        if let Some(event) = events.next_event() {
            return event;
        }
        assert!(start.elapsed() < DEADLINE, "no event");
    }
}

#[test]
fn the_passive_side_of_a_refused_write_learns_of_it() {
    let device = hca::Device::open(hca::Config::default()).unwrap();
    let context = Context::open(Soft::new(device.clone())).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let mut completions = CompletionQueue::create(&context, &uar, 1024).unwrap();
    let watch = || context.device_events().unwrap().expect("the software HCA has events");
    let (events, others) = (watch(), watch());
    let config = RcConfig::default();
    let [mut active, mut passive] = [(); 2]
        .map(|()| RcQueuePair::create(&domain, &uar, &completions, &completions, &config).unwrap());
    active.connect(&RcPath::to(&passive.address())).unwrap();
    passive.connect(&RcPath::to(&active.address())).unwrap();
    assert!(!is_readable(events.descriptor().unwrap(), Duration::ZERO));

    // A region without remote rights.
    let target = Buffer::allocate(&domain, 4096, Access::LOCAL_WRITE).unwrap();
    let remote = target.region().remote(0);
    active
        .send
        .post(Write { local: Inline(b"refused"), remote }, ControlFlags::COMPLETION)
        .unwrap();
    assert_eq!(wait(&*events), DeviceEvent::QueuePairAccess(passive.number()));
    // Each receiver of events gets all of them, also if another has read the kernel's channel.
    assert_eq!(wait(&*others), DeviceEvent::QueuePairAccess(passive.number()));
    assert_eq!(passive.state().unwrap(), QpState::Err);
    let start = Instant::now();
    let kind = loop {
        if let Some(polled) = completions.poll() {
            break polled.completion().kind;
        }
        assert!(start.elapsed() < DEADLINE, "no completion");
        std::thread::yield_now();
    };
    assert!(matches!(kind, CompletionKind::SendError(_)), "{kind:?}");

    let number = completions.number().unwrap();
    assert!(device.inject(hca::Fault::CqOverrun { cqn: number }));
    assert_eq!(wait(&*events), DeviceEvent::CompletionQueueError(Some(number)));
    assert!(device.inject(hca::Fault::LinkDown));
    assert_eq!(wait(&*events), DeviceEvent::PortDown(1));
    assert!(device.inject(hca::Fault::LinkUp));
    assert_eq!(wait(&*events), DeviceEvent::PortUp(1));
    assert_eq!(events.failure(), None);
    assert!(device.inject(hca::Fault::Fatal));
    assert!(matches!(wait(&*events), DeviceEvent::Fatal(_)));
    assert!(!is_readable(events.descriptor().unwrap(), Duration::ZERO));
    assert!(events.failure().is_some());
}

/// The event comes for queue pairs that share a receive queue; the others have none.
#[test]
fn a_queue_pair_in_error_reports_that_it_returned_its_receives() {
    let device = hca::Device::open(hca::Config::default()).unwrap();
    let context = Context::open(Soft::new(device)).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let completions = CompletionQueue::create(&context, &uar, 2048).unwrap();
    let shared = SharedReceiveQueue::<List>::create(&domain, 16, 1).unwrap();
    let [mut sharing, mut own] = [Some(&shared), None].map(|shared| {
        let config = RcConfig::default();
        let mut pair = RcQueuePair::<barewire_mlx5::doorbell::BlueFlame, _>::create_sharing(
            &domain,
            &uar,
            &completions,
            &completions,
            shared,
            &config,
        )
        .unwrap();
        pair.connect(&RcPath::to(&pair.address())).unwrap();
        pair
    });
    assert_eq!((sharing.is_drained(), own.is_drained()), (Some(false), None));
    sharing.to_error().unwrap();
    own.to_error().unwrap();
    let start = Instant::now();
    while sharing.is_drained() != Some(true) {
        assert!(start.elapsed() < DEADLINE, "no event");
        context.read_queue_events();
        std::thread::yield_now();
    }
    assert_eq!(own.is_drained(), None);
    // The event of the state before could arrive after the reset.
    sharing.reset().unwrap();
    assert_eq!(sharing.is_drained(), None);
}
