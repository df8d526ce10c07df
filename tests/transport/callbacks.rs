//! Handlers and callbacks that open, drop and panic.

use barewire::{Access, Completion, FlushMode, InterfaceConfig, Posted};

use crate::support::{Pair, Watch};

/// After a panic in a completion callback, later operations complete, and the queue continues.
#[test]
fn a_panic_in_a_callback_does_no_harm() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let (target, key) = pair.target(64, Access::all());
    let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
    let slice = [source.slice(0, 64).unwrap()];
    let endpoint = pair.client.endpoint.clone();
    let bad = Completion::new(|_| panic!("expected by the test"));
    let watches: Vec<_> = (0..5).map(|_| Watch::new(1)).collect();
    // The completion of the last covers all of them.
    let _ = endpoint.put_bcopy(|_| 8, target.address(), &key).unwrap();
    let _ = endpoint.flush(FlushMode::Local, Some(&bad)).unwrap();
    for watch in &watches {
        let _ = endpoint.flush(FlushMode::Local, Some(&watch.completion)).unwrap();
    }
    while pair.devices[0].step() {}
    let worker = &mut pair.worker;
    let caught =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| while worker.progress() > 0 {}));
    assert!(caught.is_err());
    pair.settle();
    for watch in &watches {
        assert_eq!((watch.calls(), watch.result()), (1, Some(Ok(()))));
    }
    assert_eq!(endpoint.flush(FlushMode::Local, None), Ok(Posted::Done));
    let watch = Watch::new(1);
    let post = endpoint.put_zcopy(&slice, target.address(), &key, Some(&watch.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    pair.settle();
    assert_eq!(watch.result(), Some(Ok(())));
}
