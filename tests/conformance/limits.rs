//! Processes that may have no large files: errors that name the reason, no signal.

use std::error::Error;
use std::time::{Duration, Instant};

use barewire::{
    Access, Domain, Endpoint, FlushMode, Interface, InterfaceConfig, Memory, PostError, Posted, RemoteKey,
    Worker,
};

use crate::fork::fork_with;
use crate::place::Place;

/// The error and what is behind it.
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
}

/// Opens everything and connects an interface to itself.
fn open((transport, device): (&str, &str), length: usize) -> Result<Ends, Box<dyn Error>> {
    let mut worker = Worker::new();
    let domain = Domain::open(transport, device)?;
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    let device = interface.device_address();
    let endpoints = if transport == "self" {
        vec![Endpoint::connect_to_interface(&interface, &device, &interface.address())?]
    } else {
        let (a, b) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
        a.connect(&device, &b.address())?;
        b.connect(&device, &a.address())?;
        vec![a, b]
    };
    let (target, source) = (domain.allocate(length, Access::all())?, domain.allocate(64, Access::all())?);
    let key = domain.unpack_key(&target.pack_key())?;
    Ok(Ends { worker, interface, endpoints, target, source, key })
}

/// Puts a few bytes. An error that comes later, if any.
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
            Err(error) => return Some(endpoint.error().map_or_else(|| error.to_string(), |e| e.to_string())),
        }
        ends.worker.progress();
        std::thread::yield_now();
        assert!(start.elapsed() < Duration::from_secs(20), "neither done nor an error");
    }
}

fn limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: a limit that lives until the call returns.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// With files of 10 KiB at most, memory of 1 MiB is there, or an error says what is wrong.
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

/// The transport and the device to open.
fn ends(place: &Place) -> (&str, &str) {
    match place.ends() {
        Some([one, _]) => one,
        None if place.name == "self" => ("self", "memory"),
        None => ("rc_mlx5", "soft0:1"),
    }
}
