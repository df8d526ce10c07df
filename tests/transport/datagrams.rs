//! Behaviours specific to transports over datagrams: connecting to interfaces, and peers that do not
//! respond. With `ud_mlx5` on software HCAs, or with the transport of `BAREWIRE_TEST_TRANSPORT` on
//! the machine's devices.

use std::time::Duration;

use barewire::error::Operation;
use barewire::{
    AtomicOp, Cause, DeviceId, Domain, Endpoint, Flags, FlushMode, Interface, InterfaceConfig,
    PostError, Posted, TransportId, Worker,
};
use barewire_hca as hca;

use crate::support::{Watch, collect, device, headers, open_soft, until, watch_errors};

/// Two devices; `None` if the environment names another transport.
fn domains() -> Option<[Domain; 2]> {
    let Ok(devices) = std::env::var("BAREWIRE_TEST_DEVICES") else {
        let devices = [(); 2].map(|()| device(hca::Faults::default()));
        return Some(devices.map(|device| open_soft(TransportId::UdMlx5, device)));
    };
    let transport = std::env::var("BAREWIRE_TEST_TRANSPORT").ok()?;
    let transport = transport.starts_with("ud_").then(|| transport.parse().unwrap())?;
    let (one, other) = devices.split_once(',').unwrap();
    Some([one, other].map(|device| Domain::open(&DeviceId::new(transport, device)).unwrap()))
}

/// Interfaces on these devices.
fn interfaces(config: &InterfaceConfig) -> Option<[(Worker, Interface); 2]> {
    Some(domains()?.map(|domain| {
        let mut worker = Worker::new();
        let interface = Interface::open(&mut worker, &domain, config).unwrap();
        (worker, interface)
    }))
}

fn connect(from: &Interface, to: &Interface) -> Endpoint {
    from.connect(&to.address()).unwrap()
}

/// Sends, and repeats the post until it is accepted.
fn send(workers: &mut [&mut Worker], endpoint: &Endpoint, header: u64) {
    until(workers, "send", || match endpoint.am_short(1, header, &[]) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error, PostError::NoResource);
            false
        }
    });
}

#[test]
fn interfaces_find_each_other_whoever_connects_first() {
    let Some([(mut here, near), (mut there, far)]) = interfaces(&InterfaceConfig::default()) else {
        return;
    };
    let (near_inbox, far_inbox) = (collect(&near, 1), collect(&far, 1));
    // One side connects.
    let first = connect(&near, &far);
    assert_eq!(first.am_short(1, 0, &[]), Err(PostError::NoResource), "until the peer answers");
    (0..100).for_each(|header| send(&mut [&mut here, &mut there], &first, header));
    until(&mut [&mut here, &mut there], "messages", || far_inbox.borrow().len() == 100);
    // The other side immediately gets the endpoint that was created for it.
    let back = connect(&far, &near);
    assert_eq!(back.am_short(1, 7, &[]), Ok(()));
    until(&mut [&mut here, &mut there], "answer", || near_inbox.borrow().len() == 1);
    // Both sides connect at the same time.
    let (one, other) = (connect(&near, &far), connect(&far, &near));
    (100..200).for_each(|header| send(&mut [&mut here, &mut there], &one, header));
    (8..100).for_each(|header| send(&mut [&mut here, &mut there], &other, header));
    until(&mut [&mut here, &mut there], "all", || {
        far_inbox.borrow().len() == 200 && near_inbox.borrow().len() == 93
    });
    assert_eq!(headers(&far_inbox), (0..200).collect::<Vec<_>>());
    assert_eq!(headers(&near_inbox), (7..100).collect::<Vec<_>>());
    // To the same interface.
    let own = connect(&near, &near);
    send(&mut [&mut here, &mut there], &own, 1000);
    until(&mut [&mut here, &mut there], "to itself", || near_inbox.borrow().len() == 94);
}

/// The peer's process is running, and makes no progress.
#[test]
fn a_silent_peer_is_named_when_its_time_is_over() {
    let config = InterfaceConfig::default().peer_timeout(Duration::from_millis(1500));
    let Some([(mut here, near), (mut there, far)]) = interfaces(&config) else { return };
    let errors = watch_errors(&near);
    let endpoint = connect(&near, &far);
    send(&mut [&mut here, &mut there], &endpoint, 0);
    until(&mut [&mut here, &mut there], "flush", || {
        endpoint.flush(FlushMode::Local, None) == Ok(Posted::Done)
    });
    let watch = Watch::new(1);
    endpoint.am_short(1, 1, &[]).unwrap();
    let post = endpoint.flush(FlushMode::Remote, Some(&watch.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    let start = std::time::Instant::now();
    until(&mut [&mut here], "error", || !errors.borrow().is_empty());
    assert!(start.elapsed() >= config.peer_timeout);
    let error = errors.borrow()[0].clone();
    assert_eq!((error.operation, error.cause), (Operation::ActiveMessage, Cause::PeerUnreachable));
    assert!(error.peer.contains(" QP 0x"), "{error}");
    let text = error.to_string();
    assert!(text.contains(" times in 1.5s (peer_timeout), from ") && text.contains(":1"), "{text}");
    assert_eq!(watch.result().unwrap().unwrap_err().cause, Cause::PeerUnreachable);
    assert_eq!(endpoint.am_short(1, 2, &[]), Err(PostError::EndpointFailed));
    assert_eq!(endpoint.error(), Some(errors.borrow()[0].clone()));
}

#[test]
fn a_peer_that_closes_says_so() {
    let Some([(mut here, near), (mut there, far)]) = interfaces(&InterfaceConfig::default()) else {
        return;
    };
    let errors = watch_errors(&near);
    let endpoint = connect(&near, &far);
    send(&mut [&mut here, &mut there], &endpoint, 0);
    until(&mut [&mut here, &mut there], "flush", || {
        endpoint.flush(FlushMode::Local, None) == Ok(Posted::Done)
    });
    drop((there, far));
    // Nothing is outstanding, so this is not an error yet.
    let mut told = false;
    until(&mut [&mut here], "refusal", || {
        told |= matches!(endpoint.am_short(1, 1, &[]), Err(PostError::EndpointFailed));
        told
    });
    until(&mut [&mut here], "error", || !errors.borrow().is_empty());
    assert_eq!(errors.borrow()[0].cause, Cause::Disconnected);
}

#[test]
fn nobody_answers_a_request() {
    let config = InterfaceConfig::default().connect_timeout(Duration::from_millis(300));
    let Some([(mut here, near), (there, far)]) = interfaces(&config) else { return };
    let errors = watch_errors(&near);
    let address = far.address();
    drop((there, far));
    let endpoint = near.connect(&address).unwrap();
    assert!(endpoint.is_connecting());
    until(&mut [&mut here], "error", || !errors.borrow().is_empty());
    assert!(!endpoint.is_connecting());
    let error = errors.borrow()[0].clone();
    assert_eq!((error.operation, error.cause), (Operation::Connect, Cause::PeerUnreachable));
    assert_eq!(endpoint.am_short(1, 0, &[]), Err(PostError::EndpointFailed));
}

#[test]
fn packets_longer_than_the_peer_takes_are_refused_when_connecting() {
    let Some([(_worker, near), _]) = interfaces(&InterfaceConfig::default()) else { return };
    let config = InterfaceConfig::default().path_mtu(256);
    let Some([_, (_other, far)]) = interfaces(&config) else { return };
    let error = near.connect(&far.address()).unwrap_err();
    assert!(error.to_string().contains("path_mtu"), "{error}");
    assert_eq!(far.attributes().am.max_bcopy, 240);
}

/// Messages in both directions, in order, each once, with any faults of the wire:
/// `BAREWIRE_HCA_FAULTS`.
#[test]
fn volume_both_ways() {
    let Some([(mut here, near), (mut there, far)]) = interfaces(&InterfaceConfig::default()) else {
        return;
    };
    assert!(near.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE));
    let (near_inbox, far_inbox) = (collect(&near, 1), collect(&far, 1));
    let (one, other) = (connect(&near, &far), connect(&far, &near));
    // An emulated guest is slow.
    let emulated =
        std::env::var("BAREWIRE_TEST_DEVICES").is_ok_and(|names| names.starts_with("rxe"));
    let count = if emulated { 300 } else { 3000 };
    let (longest, mut sent, mut answered) = (near.attributes().am.max_short, 0, 0);
    let post = |endpoint: &Endpoint, next: &mut u64| {
        let payload = vec![*next as u8; *next as usize * 37 % longest];
        while *next < count && endpoint.am_short(1, *next, &payload).is_ok() {
            *next += 1;
            if !next.is_multiple_of(5) {
                break;
            }
        }
    };
    until(&mut [&mut here, &mut there], "volume", || {
        post(&one, &mut sent);
        post(&other, &mut answered);
        [&near_inbox, &far_inbox].iter().all(|inbox| inbox.borrow().len() as u64 == count)
    });
    for inbox in [near_inbox, far_inbox] {
        assert_eq!(headers(&inbox), (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn what_there_is_not_is_unsupported() {
    let Some([domain, _]) = domains() else { return };
    let (mut worker, config) = (Worker::new(), InterfaceConfig::default());
    let interface = Interface::open(&mut worker, &domain, &config).unwrap();
    let memory = domain.allocate(8, barewire::Access::all()).unwrap();
    let (address, key) = (memory.address(), domain.unpack_key(&memory.pack_key()).unwrap());
    let endpoint = connect(&interface, &interface);
    assert_eq!(endpoint.put_short(&[1], address, &key), Err(PostError::Unsupported));
    let added = endpoint.atomic_post(AtomicOp::Add(1_u64), address, &key);
    assert_eq!(added, Err(PostError::Unsupported));
}
