//! Processes with limits on file size or descriptors: errors name the reason, and no signal is
//! raised.

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::{
    Access, DeviceId, Domain, Endpoint, FlushMode, Interface, InterfaceConfig, Memory, PostError,
    Posted, RemoteKey, Worker,
};

use crate::fork::fork_with;
use crate::place::Place;

/// The texts of the error and its sources.
fn words(error: &(dyn Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words = format!("{words}: {error}");
        source = error.source();
    }
    words
}

struct Ends {
    worker: Worker,
    #[expect(dead_code, reason = "kept open")]
    interface: Interface,
    endpoints: Vec<Endpoint>,
    target: Memory,
    source: Memory,
    key: RemoteKey,
    /// The interface's report of an error that concerns none of its own endpoints.
    reported: Rc<RefCell<Option<String>>>,
}

/// Opens everything and connects an interface to itself.
fn open((transport, device): (&str, &str), length: usize) -> Result<Ends, Box<dyn Error>> {
    let mut worker = Worker::new();
    let domain = Domain::open(&DeviceId::new(transport.parse()?, device))?;
    let config = InterfaceConfig::default().connect_timeout(Duration::from_secs(1));
    let interface = Interface::open(&mut worker, &domain, &config)?;
    let reported = Rc::<RefCell<Option<String>>>::default();
    let reports = Rc::clone(&reported);
    interface.set_error_handler(move |error| *reports.borrow_mut() = Some(error.to_string()));
    let endpoints = if transport == "self" {
        vec![interface.connect(&interface.address())?]
    } else {
        let (a, b) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
        a.connect(&b.address())?;
        b.connect(&a.address())?;
        vec![a, b]
    };
    let (target, source) =
        (domain.allocate(length, Access::all())?, domain.allocate(64, Access::all())?);
    let key = domain.unpack_key(&target.pack_key())?;
    Ok(Ends { worker, interface, endpoints, target, source, key, reported })
}

/// Puts a few bytes. Returns an error that is reported later, if any.
fn put(ends: &mut Ends) -> Option<String> {
    let slice = [ends.source.slice(0, 64).unwrap()];
    let endpoint = &ends.endpoints[0];
    let start = Instant::now();
    let mut posted = false;
    loop {
        let result = if posted {
            endpoint.flush(FlushMode::Remote, None)
        } else {
            endpoint.put_zcopy(&slice, ends.target.address(), &ends.key, None)
        };
        match result {
            Ok(Posted::Done) if posted => return None,
            Ok(_) => posted = true,
            Err(PostError::NoResource) => {}
            // The next call of progress knows the reason.
            Err(PostError::EndpointFailed) if endpoint.error().is_none() => {}
            Err(error) => {
                return Some(endpoint.error().map_or_else(|| error.to_string(), |e| e.to_string()));
            }
        }
        ends.worker.progress();
        if ends.reported.borrow().is_some() {
            return ends.reported.take();
        }
        std::thread::yield_now();
        assert!(start.elapsed() < Duration::from_secs(20), "neither done nor an error");
    }
}

fn limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: `limit` is valid for reads during the call.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// With a limit of 10 KiB on files, memory of 1 MiB is allocated, or an error gives the reason.
pub(crate) fn small_files(place: &Place) {
    let end = ends(place);
    let child = fork_with(|| {
        limit(libc::RLIMIT_FSIZE, 10 << 10);
        match open(end, 1 << 20) {
            Ok(mut ends) => assert_eq!(put(&mut ends), None),
            Err(error) => {
                let words = words(&*error);
                assert!(words.contains("File too large") || words.contains("ulimit -f"), "{words}");
            }
        }
        0
    });
    assert_eq!(child.code(&place.name), 0, "{}", place.name);
}

/// Enough descriptors to open every transport.
const ENOUGH: u64 = 40;

/// Sets the limit so that `spare` more descriptors may be opened.
fn leave_descriptors(spare: u64) {
    // SAFETY: these arguments contain no pointers.
    let is_free = |number: &i32| unsafe { libc::fcntl(*number, libc::F_GETFD) } == -1;
    let last = (0..).filter(is_free).nth(spare as usize).unwrap();
    limit(libc::RLIMIT_NOFILE, last as u64);
}

/// With any number of descriptors, a put succeeds, or an error gives the reason. On devices opened
/// by libibverbs, which hides the kernel's error, any error is accepted.
pub(crate) fn few_descriptors(place: &Place) {
    let end = ends(place);
    for spare in 0..=ENOUGH {
        let child = fork_with(|| {
            leave_descriptors(spare);
            let failure = match open(end, 4096) {
                Ok(mut ends) => put(&mut ends),
                Err(error) => Some(words(&*error)),
            };
            let Some(words) = failure else { return 0 };
            assert!(spare < ENOUGH, "{ENOUGH} descriptors are not enough: {words}");
            // Over tcp, the accepting side waits for a descriptor, and this side for the accepting
            // one.
            let causes = ["Too many open files", "ulimit -n", "no response within"];
            let named = causes.iter().any(|cause| words.contains(cause)) || !place.is_ours();
            assert!(named, "with {spare} descriptors: {words}");
            0
        });
        assert_eq!(child.code(&place.name), 0, "{} with {spare} descriptors", place.name);
    }
}

/// The transport and the device to open.
fn ends(place: &Place) -> (&str, &str) {
    match place.ends() {
        Some([one, _]) => one,
        None if place.name == "self" => ("self", "memory"),
        None => ("rc_mlx5", "soft0:1"),
    }
}
