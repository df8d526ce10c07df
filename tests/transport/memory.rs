//! Local memory: bounds, registered memory of the caller, and memory that is dropped in flight.

use barewire::{Access, Cause, InterfaceConfig, OperationError, Posted};

use crate::support::{Pair, Watch, contents, watch_errors};

/// If memory is freed while the device reads it, the device is refused, and no other memory is
/// read.
#[test]
fn memory_dropped_in_flight_is_a_protection_error() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    let (target, key) = pair.target(4096, Access::all());
    let source = pair.client.domain.allocate(4096, Access::LOCAL_WRITE).unwrap();
    let watch = Watch::new(1);
    let slice = [source.slice(0, 4096).unwrap()];
    let post =
        pair.client.endpoint.put_zcopy(&slice, target.address(), &key, Some(&watch.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    drop(source);
    pair.settle();
    let Some(Err(error)) = watch.result() else { panic!("{:?}", watch.result()) };
    assert_eq!((error.cause, watch.calls()), (Cause::LocalAccess, 1));
    assert_eq!(errors.borrow().len(), 1);
    assert_eq!(contents(&target), [0; 4096]);
}

/// The target of a get is freed in flight.
#[test]
fn target_dropped_in_flight_is_a_protection_error() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let (source, key) = pair.target(4096, Access::all());
    let target = pair.client.domain.allocate(4096, Access::LOCAL_WRITE).unwrap();
    let watch = Watch::new(1);
    let slice = [target.slice(0, 4096).unwrap()];
    let post =
        pair.client.endpoint.get_zcopy(&slice, source.address(), &key, Some(&watch.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    drop(target);
    pair.settle();
    assert!(matches!(watch.result(), Some(Err(OperationError { cause: Cause::LocalAccess, .. }))));
}
