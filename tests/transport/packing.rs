//! Calls inside a `pack` function over `tcp`: they succeed or are refused, and the buffer stays
//! valid.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barewire::{
    Access, Completion, Domain, FlushMode, Interface, InterfaceConfig, PostError, Posted, Worker,
};

use crate::support::{Pair, Watch, collect, until, watch_errors};

/// The two operations with a `pack` function.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Message,
    Put,
}

const WAYS: [Way; 2] = [Way::Message, Way::Put];

/// Both ends on one worker, which a `pack` function can access.
struct Job {
    worker: Rc<RefCell<Option<Worker>>>,
    pair: [barewire::Endpoint; 2],
    interface: Interface,
    memory: barewire::Memory,
    key: barewire::RemoteKey,
}

impl Job {
    fn open() -> Self {
        let mut worker = Worker::new();
        let domain = Domain::open(&"tcp/lo".parse().unwrap()).unwrap();
        let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
        let pair = [(); 2].map(|()| barewire::Endpoint::new(&interface).unwrap());
        pair[0].connect(&pair[1].address()).unwrap();
        pair[1].connect(&pair[0].address()).unwrap();
        let memory = domain.allocate(1 << 16, Access::all()).unwrap();
        let key = domain.unpack_key(&memory.pack_key()).unwrap();
        // Both connections of the first endpoint are established.
        let arrived = collect(&interface, 1);
        let read = Watch::new(1);
        assert_eq!(pair[0].am_short(1, 0, b"x"), Ok(()));
        let unpack = barewire::Unpack::new(|_| ());
        read.posted(pair[0].get_bcopy(&unpack, 8, memory.address(), &key, Some(&read.completion)));
        until(&mut [&mut worker], "connections", || read.is_done() && arrived.borrow().len() == 1);
        Self { worker: Rc::new(RefCell::new(Some(worker))), pair, interface, memory, key }
    }

    /// Posts 100 bytes, and calls `inside` halfway through `pack`.
    fn post(&self, way: Way, inside: impl FnOnce()) -> Result<usize, PostError> {
        let pack = |buffer: &mut [u8]| {
            buffer[..50].fill(3);
            inside();
            assert_eq!(buffer[..50], [3; 50]);
            buffer[50..100].fill(3);
            100
        };
        match way {
            Way::Message => self.pair[0].am_bcopy(2, pack),
            Way::Put => self.pair[0].put_bcopy(pack, self.memory.address(), &self.key),
        }
    }

    fn progress(&self) {
        if let Some(worker) = self.worker.borrow_mut().as_mut() {
            worker.progress();
        }
    }
}

/// Data arrives for the endpoint on each of its connections, and `pack` makes progress.
#[test]
fn pack_makes_progress() {
    for way in WAYS {
        let job = Job::open();
        let posted = collect(&job.interface, 2);
        let echoed = collect(&job.interface, 3);
        // For the packing endpoint, and held by the kernel until there is progress.
        assert_eq!(job.pair[1].am_short(3, 0, b"for the other end"), Ok(()));
        let read = Rc::new(Cell::new(0));
        let count = Rc::clone(&read);
        let unpack = barewire::Unpack::new(move |_| count.set(count.get() + 1));
        let _ = job.pair[0].get_bcopy(&unpack, 8, job.memory.address(), &job.key, None).unwrap();
        let flushed = Watch::new(1);
        let length = job.post(way, || {
            for _ in 0..200 {
                job.progress();
            }
            let _ = job.pair[0].flush(FlushMode::Local, Some(&flushed.completion));
        });
        assert_eq!(length, Ok(100), "{way:?}");
        // Nothing was lost.
        let mut worker = job.worker.borrow_mut();
        let worker = worker.as_mut().unwrap();
        until(&mut [worker], "what came meanwhile", || {
            read.get() == 1 && echoed.borrow().len() == 1
        });
        if way == Way::Message {
            until(&mut [worker], "the message", || posted.borrow().len() == 1);
            assert_eq!(posted.borrow()[0], [3; 100]);
        }
        let done = Watch::new(1);
        done.posted(job.pair[0].flush(FlushMode::Remote, Some(&done.completion)));
        until(&mut [worker], "the flush", || done.is_done());
        if way == Way::Put {
            let mut bytes = [0; 100];
            job.memory.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [3; 100]);
        }
    }
}

/// The worker is dropped during `pack`: outstanding operations complete as cancelled.
#[test]
fn pack_drops_the_worker() {
    for way in WAYS {
        let job = Job::open();
        let results = Rc::new(RefCell::new(Vec::new()));
        let slice = [job.memory.slice(0, 32 << 10).unwrap()];
        let watch = {
            let results = Rc::clone(&results);
            Completion::new(move |result| results.borrow_mut().push(result))
        };
        let remote = job.memory.address() + (32 << 10);
        let put = job.pair[0].put_zcopy(&slice, remote, &job.key, Some(&watch));
        assert_eq!(put, Ok(Posted::InProgress));
        let length = job.post(way, || drop(job.worker.borrow_mut().take()));
        assert_eq!(length, Err(PostError::Closed), "{way:?}");
        assert_eq!(results.borrow().len(), 1, "{way:?}");
        assert_eq!(job.pair[0].am_short(1, 0, &[]), Err(PostError::Closed));
    }
}

/// The endpoint is cancelled during `pack`: the post is refused and nothing of it is sent.
#[test]
fn pack_cancels_the_endpoint() {
    for way in WAYS {
        let job = Job::open();
        let posted = collect(&job.interface, 2);
        let errors = watch_errors(&job.interface);
        let length = job.post(way, || {
            let _ = job.pair[0].flush(FlushMode::Cancel, None);
            for _ in 0..200 {
                job.progress();
            }
        });
        assert_eq!(length, Err(PostError::EndpointFailed), "{way:?}");
        let canceled = Watch::new(1);
        match job.pair[0].flush(FlushMode::Cancel, Some(&canceled.completion)) {
            Ok(Posted::Done) => {}
            other => canceled.posted(other),
        }
        let mut worker = job.worker.borrow_mut();
        for _ in 0..200 {
            worker.as_mut().unwrap().progress();
        }
        assert!(posted.borrow().is_empty() && errors.borrow().is_empty(), "{way:?}");
    }
}

/// The endpoint packs before it is connected; its peer is accepted afterwards.
#[test]
fn pack_makes_progress_while_the_peer_connects() {
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let inboxes = [collect(&pair.client.interface, 4), collect(&pair.server.interface, 4)];
    let Pair { worker, server_worker, client, server, .. } = &mut pair;
    for side in [&*client, &*server] {
        let length = side.endpoint.am_bcopy(4, |buffer| {
            for _ in 0..200 {
                worker.progress();
                server_worker.progress();
                std::thread::yield_now();
            }
            buffer[0] = 9;
            1
        });
        assert_eq!(length, Ok(1));
    }
    pair.until("messages", || inboxes.iter().all(|inbox| inbox.borrow().len() == 1));
}
