//! What is particular to `cma`: slices, what it lacks, and processes that end.

use std::process::Command;

use barewire::{
    Access, Cause, ConnectError, Endpoint, FlushMode, InterfaceConfig, Operation, PostError, Posted, Unpack,
};

use crate::support::{Pair, Watch, contents, parts, pattern, watch_errors};

const LONG: usize = 3 << 20;

#[test]
fn long_transfers_are_done_slice_by_slice_and_in_order() {
    let mut pair = Pair::over_cma(&InterfaceConfig::default());
    let (memory, key) = pair.target(LONG, Access::all());
    let source = pair.client.domain.allocate(LONG, Access::LOCAL_WRITE).unwrap();
    let data = pattern(1, LONG);
    source.write(0, &data).unwrap();
    let (put, small, flushed) = (Watch::new(1), Watch::new(1), Watch::new(1));
    let endpoint = pair.client.endpoint.clone();
    let slices = parts(&source, LONG, 5);
    let post = endpoint.put_zcopy(&slices, memory.address(), &key, Some(&put.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    // A short one behind it does not overtake.
    let word = [source.slice(8, 8).unwrap()];
    let post = endpoint.put_zcopy(&word, memory.address(), &key, Some(&small.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    assert_eq!(endpoint.flush(FlushMode::Remote, Some(&flushed.completion)), Ok(Posted::InProgress));
    let mut turns = 0;
    while !flushed.is_done() {
        assert!(pair.worker.progress() > 0);
        turns += 1;
    }
    assert!(turns >= LONG / (1 << 20), "{turns}");
    assert_eq!((put.calls(), small.calls()), (1, 1));
    let mut expected = data.clone();
    expected.copy_within(8..16, 0);
    assert!(contents(&memory) == expected);

    source.write(0, &vec![0; LONG]).unwrap();
    let got = Watch::new(1);
    let post = endpoint.get_zcopy(&slices, memory.address(), &key, Some(&got.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    pair.until("get", || got.is_done());
    assert!(contents(&source) == expected);
}

#[test]
fn a_cancelled_transfer_completes_once() {
    let mut pair = Pair::over_cma(&InterfaceConfig::default());
    let (memory, key) = pair.target(LONG, Access::all());
    let source = pair.client.domain.allocate(LONG, Access::LOCAL_WRITE).unwrap();
    let slice = [source.slice(0, LONG).unwrap()];
    let endpoint = pair.client.endpoint.clone();
    let (put, canceled) = (Watch::new(1), Watch::new(1));
    assert!(endpoint.put_zcopy(&slice, memory.address(), &key, Some(&put.completion)).is_ok());
    assert_eq!(endpoint.flush(FlushMode::Cancel, Some(&canceled.completion)), Ok(Posted::InProgress));
    assert_eq!(endpoint.put_zcopy(&slice, memory.address(), &key, None), Err(PostError::EndpointFailed));
    // Freed memory is read by nobody any more, or kept while it is.
    drop(source);
    pair.until("cancel", || canceled.is_done());
    assert_eq!((put.calls(), canceled.calls()), (1, 1));
    assert_eq!(put.result().unwrap().unwrap_err().cause, Cause::Canceled);
}

#[test]
fn what_it_lacks_is_said() {
    let pair = Pair::over_cma(&InterfaceConfig::default());
    let (memory, key) = pair.target(64, Access::all());
    let endpoint = &pair.client.endpoint;
    let at = memory.address();
    assert_eq!(endpoint.am_short(0, 0, &[]), Err(PostError::Unsupported));
    assert_eq!(endpoint.put_short(&[1; 8], at, &key), Err(PostError::Unsupported));
    assert_eq!(endpoint.put_short(&[1], at, &key), Err(PostError::Unsupported));
    assert_eq!(endpoint.am_bcopy(0, |_| panic!("not packed")), Err(PostError::Unsupported));
    assert_eq!(endpoint.get_bcopy(&Unpack::new(|_| ()), 1, at, &key, None), Err(PostError::Unsupported));
    assert_eq!(endpoint.atomic_add64(1, at, &key), Err(PostError::Unsupported));
}

#[test]
fn freed_memory_of_the_peer_is_an_error_and_the_endpoint_s_last() {
    let mut pair = Pair::over_cma(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    // Too long for the allocator to keep.
    let (memory, key) = pair.target(64 << 20, Access::all());
    let at = memory.address();
    drop(memory);
    let source = pair.client.domain.allocate(64, Access::LOCAL_WRITE).unwrap();
    let slice = [source.slice(0, 64).unwrap()];
    assert_eq!(pair.client.endpoint.put_zcopy(&slice, at, &key, None), Err(PostError::EndpointFailed));
    pair.until("error", || errors.borrow().len() == 1);
    assert_eq!(errors.borrow()[0].cause, Cause::RemoteAccess);
    assert_eq!(errors.borrow()[0].operation, Operation::Put);
}

/// The address of a process that is no more, or was never meant: it is said when connecting.
#[test]
fn other_processes_are_refused() {
    let pair = Pair::over_cma(&InterfaceConfig::default());
    let device = pair.client.interface.device_address();
    let endpoint = Endpoint::new(&pair.client.interface).unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let forged = |process: u32| {
        let mut bytes = endpoint.address().to_bytes();
        bytes[6..10].copy_from_slice(&process.to_be_bytes());
        barewire::EndpointAddress::from_bytes(&bytes).unwrap()
    };
    let refused = |process| match endpoint.connect(&device, &forged(process)) {
        Err(ConnectError::Unreachable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(child.id()).contains("not the one"), "{}", refused(child.id()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(refused(child.id()).contains("has ended"), "{}", refused(child.id()));
    endpoint.connect(&device, &endpoint.address()).unwrap();
}
