//! A device that is removed: every endpoint fails, and every operation completes once.

use std::time::{Duration, Instant};

use barewire::{Access, Cause, Domain, FlushMode, InterfaceConfig, PostError, Worker};
use barewire_hca as hca;

use crate::support::{DEADLINE, Side, Watch, connect, device, watch_errors};

#[test]
fn a_removed_device_fails_its_endpoints_with_the_event() {
    // A program that waits notices it when it arms the descriptor.
    fails_endpoints_with(|worker| {
        let _ = worker.wait(Some(Duration::from_millis(20))).unwrap();
    });
}

#[test]
fn a_loop_of_progress_notices_that_the_device_was_removed() {
    fails_endpoints_with(|worker| {
        let _ = worker.progress();
    });
}

/// Removes the device below a connection, and expects errors while `turn` is called.
fn fails_endpoints_with(turn: impl Fn(&mut Worker)) {
    let [here, there] = [(); 2].map(|()| device(hca::Faults::default()));
    let config = InterfaceConfig::default();
    let (mut worker, mut other) = (Worker::new(), Worker::new());
    let client = Side::open(&mut worker, &Domain::open_soft(here.clone()).unwrap(), &config);
    let server = Side::open(&mut other, &Domain::open_soft(there.clone()).unwrap(), &config);
    connect(&client, &server);
    let memory = server.domain.allocate(64, Access::all()).unwrap();
    let key = client.domain.unpack_key(&memory.pack_key()).unwrap();
    let errors = watch_errors(&client.interface);
    // Nothing completes any more, but the device takes doorbells without complaint.
    assert!(here.inject(hca::Fault::Unplug));
    let flushed = Watch::new(1);
    client.endpoint.put_short(&[1; 8], memory.address(), &key).unwrap();
    flushed.posted(client.endpoint.flush(FlushMode::Local, Some(&flushed.completion)));
    let start = Instant::now();
    while errors.borrow().is_empty() || !flushed.is_done() {
        turn(&mut worker);
        assert!(start.elapsed() < DEADLINE, "no failure");
    }
    let error = errors.borrow()[0].clone();
    assert_eq!(error.cause, Cause::DeviceFailed);
    let text = error.to_string();
    assert!(text.contains("soft0:1 reported DEVICE_FATAL"), "{text}");
    assert_eq!(client.endpoint.check(), Err(PostError::EndpointFailed));
}
