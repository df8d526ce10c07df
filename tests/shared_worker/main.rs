//! Tests of the worker that threads share. They are also run under ThreadSanitizer.

mod reentrancy;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use barewire::shared::{
    SharedCompletion, SharedEndpoint, SharedFetchResult, SharedInterface, SharedMessage,
    SharedUnpack, SharedWaitError, SharedWorker,
};
use barewire::{
    Access, AtomicOp, Domain, Flags, FlushMode, InterfaceConfig, Memory, OpenError, OperationError,
    PendingResult, PostError, Posted, RemoteKey,
};

/// Time limit for a machine under load; no test waits for it to pass.
const DEADLINE: Duration = Duration::from_mins(2);
const THREADS: usize = 4;

/// Two connected ends, each with a worker. Over `self` both are the same.
struct Pair {
    client: SharedEndpoint,
    /// The server's end, which keeps the connection.
    _server: SharedEndpoint,
    interface: SharedInterface,
    workers: Vec<SharedWorker>,
    /// Memory of the client.
    local: Memory,
    /// Memory of the server, with its key.
    remote: Memory,
    key: RemoteKey,
}

impl Pair {
    fn open(device: &str) -> Self {
        let open = || {
            let worker = SharedWorker::new();
            let domain = Domain::open(&device.parse().unwrap()).unwrap();
            let config = InterfaceConfig::default();
            let interface = SharedInterface::open(&worker, &domain, &config).unwrap();
            (worker, domain, interface)
        };
        let (worker, domain, interface) = open();
        let (server_worker, server_domain, server) = if device.starts_with("self") {
            (worker.clone(), domain.clone(), interface.clone())
        } else {
            open()
        };
        let (here, there) = if interface.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE) {
            let here = interface.connect(&server.address()).unwrap();
            (here, server.connect(&interface.address()).unwrap())
        } else {
            let here = SharedEndpoint::new(&interface).unwrap();
            let there = SharedEndpoint::new(&server).unwrap();
            here.connect(&there.address().unwrap()).unwrap();
            there.connect(&here.address().unwrap()).unwrap();
            (here, there)
        };
        let remote = server_domain.allocate(4096, Access::all()).unwrap();
        Self {
            client: here,
            _server: there,
            interface: server,
            workers: vec![worker, server_worker],
            local: domain.allocate(4096, Access::all()).unwrap(),
            key: domain.unpack_key(&remote.pack_key()).unwrap(),
            remote,
        }
    }

    fn progress(&self) {
        for worker in &self.workers {
            worker.progress();
        }
    }

    /// Makes progress until `done`.
    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < DEADLINE, "{what}: no end");
            self.progress();
        }
    }

    /// Posts until there is room.
    fn post<R>(&self, mut post: impl FnMut() -> Result<R, PostError>) -> R {
        let mut result = None;
        self.until("room", || match post() {
            Ok(done) => {
                result = Some(done);
                true
            }
            Err(PostError::NoResource | PostError::NotConnected) => false,
            Err(error) => panic!("{error}"),
        });
        result.unwrap()
    }
}

fn payload(thread: usize, round: u64) -> [u8; 24] {
    std::array::from_fn(|at| (thread as u64 * 31 + round * 7 + at as u64) as u8)
}

/// Every operation from several threads at once, all of which make progress.
fn exchange(device: &str, rounds: u64) {
    let pair = Pair::open(device);
    let next: Arc<[AtomicU64; THREADS]> = Arc::default();
    let seen = Arc::clone(&next);
    let handler = move |message: SharedMessage<'_>| {
        let (header, data) = message.split_short().unwrap();
        let (thread, round) = ((header >> 32) as usize, header & 0xffff_ffff);
        assert_eq!(data, payload(thread, round), "thread {thread}, round {round}");
        assert_eq!(seen[thread].fetch_add(1, Ordering::Relaxed), round, "in order");
    };
    pair.interface.set_handler(5, handler).unwrap();
    let changed = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pair, changed) = (&pair, &changed);
            scope.spawn(move || worker_thread(pair, thread, rounds, changed));
        }
    });
    let all = || next.iter().all(|next| next.load(Ordering::Relaxed) == rounds);
    pair.until("messages", all);
    assert_eq!(pair.interface.unhandled(), 0);
    pair.until("atomics", || pair.remote.load_u64(0).unwrap() == changed.load(Ordering::Relaxed));
    assert!(pair.client.counters().posted >= THREADS as u64 * rounds * 2);
    assert!(pair.client.error().is_none());
}

fn worker_thread(pair: &Pair, thread: usize, rounds: u64, changed: &AtomicU64) {
    let endpoint = pair.client.clone();
    let offset = 64 + 512 * thread;
    let at = pair.remote.address() + offset as u64;
    let completion = SharedCompletion::counter();
    let finish = |posted: Posted| {
        if posted == Posted::InProgress {
            pair.until("completion", || completion.pending() == 0);
            completion.status().unwrap();
        }
    };
    let atomics = pair.interface.attributes().atomic64;
    for round in 0..rounds {
        let bytes = payload(thread, round);
        let header = (thread as u64) << 32 | round;
        pair.post(|| endpoint.am_short(5, header, &bytes));
        pair.post(|| endpoint.put_short(&bytes[..8], at, &pair.key));
        if atomics.contains(barewire::AtomicOperations::FETCH_ADD) && round % 4 == 0 {
            let result = SharedFetchResult::new();
            let add = AtomicOp::Add(1_u64);
            let word = pair.remote.address();
            let before = changed.load(Ordering::SeqCst);
            finish(
                pair.post(|| {
                    endpoint.atomic_fetch(add, word, &pair.key, &result, Some(&completion))
                }),
            );
            changed.fetch_add(1, Ordering::SeqCst);
            assert!(result.get() >= before, "{} after {before}", result.get());
        }
        if round % 4 != 0 {
            continue;
        }
        pair.local.write(offset, &bytes).unwrap();
        let slices = [pair.local.slice(offset, bytes.len()).unwrap()];
        finish(pair.post(|| endpoint.put_zcopy(&slices, at + 32, &pair.key, Some(&completion))));
        // The put is visible to the get: one endpoint and a completed fence between them.
        pair.post(|| endpoint.fence());
        let seen = Arc::new(Mutex::new(Vec::<u8>::new()));
        let unpacked = Arc::clone(&seen);
        let unpack = SharedUnpack::new(move |bytes| unpacked.lock().unwrap().extend(bytes));
        finish(pair.post(|| {
            endpoint.get_bcopy(&unpack, bytes.len(), at + 32, &pair.key, Some(&completion))
        }));
        assert_eq!(*seen.lock().unwrap(), bytes, "thread {thread}, round {round}");
    }
    finish(pair.post(|| endpoint.flush(FlushMode::Remote, Some(&completion))));
}

#[test]
fn threads_exchange_over_self() {
    exchange("self/memory", 400);
}

#[test]
fn threads_exchange_over_shm() {
    exchange("shm/memory", 400);
}

#[test]
fn threads_exchange_over_tcp() {
    exchange("tcp/lo", 200);
}

#[test]
fn threads_exchange_over_rc_mlx5() {
    exchange("rc_mlx5/soft0:1", 200);
}

/// Threads wait for operations of their own at the same time: one of them sleeps for all, and hands
/// over when its own is finished. A lost wake-up would end in a timeout.
fn wait_together(device: &str) {
    let pair = Pair::open(device);
    let [client, server] = &pair.workers[..] else { unreachable!() };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                server.wait(Some(Duration::from_millis(20))).unwrap();
            }
        });
        let waiting: Vec<_> = (0..THREADS)
            .map(|thread| {
                let pair = &pair;
                scope.spawn(move || {
                    let completion = SharedCompletion::counter();
                    let at = pair.remote.address() + 64 * thread as u64;
                    let slices = [pair.local.slice(64 * thread, 64).unwrap()];
                    for _ in 0..50 {
                        let get =
                            || pair.client.get_zcopy(&slices, at, &pair.key, Some(&completion));
                        let _ = pair.post(get);
                        client.wait_for(&completion, Some(DEADLINE)).unwrap();
                    }
                })
            })
            .collect();
        let results: Vec<_> = waiting.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        for result in results {
            result.unwrap();
        }
    });
}

#[test]
fn threads_wait_together_over_tcp() {
    wait_together("tcp/lo");
}

#[test]
fn threads_wait_together_over_rc_mlx5() {
    wait_together("rc_mlx5/soft0:1");
}

#[test]
fn a_sleeping_thread_receives_messages_and_lets_others_post() {
    let pair = Pair::open("shm/memory");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let handler = move |_: SharedMessage<'_>| {
        counted.fetch_add(1, Ordering::SeqCst);
    };
    pair.interface.set_handler(1, handler).unwrap();
    let start = Instant::now();
    thread::scope(|scope| {
        for worker in &pair.workers {
            let count = &count;
            scope.spawn(move || {
                while count.load(Ordering::SeqCst) < 300 {
                    assert!(start.elapsed() < DEADLINE);
                    worker.wait(Some(Duration::from_millis(100))).unwrap();
                }
            });
        }
        for round in 0..300 {
            pair.post(|| pair.client.am_short(1, round, b"wake up"));
        }
    });
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn completions_are_waited_for_and_awaited_on_other_threads() {
    let pair = Pair::open("rc_mlx5/soft0:1");
    let (told, calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let called = Arc::clone(&calls);
    let completion = SharedCompletion::new(move |result| {
        assert_eq!(result, Ok(()));
        called.fetch_add(1, Ordering::SeqCst);
    });
    let slices = [pair.local.slice(0, 512).unwrap()];
    let at = pair.remote.address();
    let posted = pair.post(|| pair.client.get_zcopy(&slices, at, &pair.key, Some(&completion)));
    assert_eq!(posted, Posted::InProgress);
    assert!(matches!(completion.wait(Some(Duration::ZERO)), Err(SharedWaitError::TimedOut)));
    thread::scope(|scope| {
        scope.spawn(|| {
            completion.wait(Some(DEADLINE)).unwrap();
            told.fetch_add(1, Ordering::SeqCst);
        });
        scope.spawn(|| {
            let waker = Waker::from(Arc::new(Unpark(thread::current())));
            let mut future = pin!(IntoFuture::into_future(&completion));
            let start = Instant::now();
            while future.as_mut().poll(&mut Context::from_waker(&waker)) != Poll::Ready(Ok(())) {
                assert!(start.elapsed() < DEADLINE);
                thread::park_timeout(DEADLINE);
            }
            told.fetch_add(1, Ordering::SeqCst);
        });
        pair.until("both", || told.load(Ordering::SeqCst) == 2);
    });
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn handles_are_dropped_last_on_another_thread() {
    for device in ["self/memory", "shm/memory", "tcp/lo", "rc_mlx5/soft0:1"] {
        let pair = Pair::open(device);
        let (keep, kept) = mpsc::channel();
        pair.interface
            .set_handler(2, move |message| keep.send(message.keep().unwrap()).unwrap())
            .unwrap();
        pair.post(|| pair.client.am_short(2, 9, b"to keep"));
        let mut first = None;
        pair.until("the message", || {
            first = kept.try_recv().ok();
            first.is_some()
        });
        let Pair { client, workers, interface, _server: server, local, remote, key } = pair;
        let completion = SharedCompletion::counter();
        let slices = [local.slice(0, 64).unwrap()];
        let _ = client.get_zcopy(&slices, remote.address(), &key, Some(&completion));
        drop(workers);
        assert_eq!(completion.pending(), 0, "{device}: everything has ended");
        assert_eq!(client.am_short(2, 0, b"late"), Err(PostError::Closed), "{device}");
        let first = first.unwrap();
        thread::spawn(move || drop((interface, server))).join().unwrap();
        thread::spawn(move || drop(client)).join().unwrap();
        let bytes = thread::spawn(move || first[8..].to_vec()).join().unwrap();
        assert_eq!(bytes, b"to keep", "{device}");
    }
}

#[test]
fn operations_that_a_drop_cancels_finish_their_completion() {
    let pair = Pair::open("rc_mlx5/soft0:1");
    let (send, results) = mpsc::channel();
    let send = Mutex::new(send);
    let completion = SharedCompletion::new(move |result| {
        send.lock().unwrap().send(result).unwrap();
    });
    let slices = [pair.local.slice(0, 64).unwrap()];
    let at = pair.remote.address();
    let posted = pair.post(|| pair.client.get_zcopy(&slices, at, &pair.key, Some(&completion)));
    assert_eq!(posted, Posted::InProgress);
    assert_eq!(completion.pending(), 1);
    let Pair { workers, client, .. } = pair;
    thread::spawn(move || drop(workers)).join().unwrap();
    assert_eq!(results.try_recv(), Ok(Err(OperationError::CANCELED)));
    assert_eq!(completion.status(), Err(OperationError::CANCELED));
    drop(client);
}

#[test]
fn callbacks_may_post_but_neither_wait_nor_make_progress() {
    let pair = Pair::open("self/memory");
    let worker = pair.workers[0].clone();
    let domain = Domain::open(&"self/memory".parse().unwrap()).unwrap();
    let (endpoint, replies) = (pair.client.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&replies);
    let handler = move |_: SharedMessage<'_>| {
        count.fetch_add(1, Ordering::SeqCst);
    };
    pair.interface.set_handler(2, handler).unwrap();
    let handler = move |_: SharedMessage<'_>| {
        endpoint.am_short(2, 0, b"reply").unwrap();
        let wait = worker.wait(None);
        assert!(matches!(wait, Err(SharedWaitError::InCallback)), "{wait:?}");
        let wait = SharedCompletion::counter().wait(None);
        assert!(matches!(wait, Err(SharedWaitError::InCallback)), "{wait:?}");
        // A message to itself is handled inside the post, where the worker is free.
        let opened = SharedInterface::open(&worker, &domain, &InterfaceConfig::default());
        drop(opened.unwrap());
    };
    pair.interface.set_handler(1, handler).unwrap();
    pair.client.am_short(1, 0, b"").unwrap();
    pair.progress();
    assert_eq!(replies.load(Ordering::SeqCst), 1);

    // A pending request runs inside progress.
    let mut kept = vec![];
    let (keep, messages) = mpsc::channel();
    let handler = move |message: SharedMessage<'_>| {
        keep.send(message.keep()).unwrap();
    };
    pair.interface.set_handler(3, handler).unwrap();
    while pair.client.am_short(3, 0, b"fill").is_ok() {
        kept.push(messages.try_recv().unwrap());
    }
    let (worker, inner) = (pair.workers[0].clone(), Arc::new(AtomicUsize::new(0)));
    let domain = Domain::open(&"self/memory".parse().unwrap()).unwrap();
    let runs = Arc::clone(&inner);
    let request = move |_: &SharedEndpoint| {
        runs.fetch_add(1, Ordering::SeqCst);
        assert_eq!(worker.progress(), 0);
        let opened = SharedInterface::open(&worker, &domain, &InterfaceConfig::default());
        assert!(matches!(opened, Err(OpenError::InCallback)));
        PendingResult::Done
    };
    pair.client.pending_add(request).unwrap();
    // The buffers come back from another thread.
    thread::spawn(move || drop(kept)).join().unwrap();
    pair.until("the request", || inner.load(Ordering::SeqCst) == 1);
}

#[test]
fn a_panic_in_a_callback_leaves_the_worker_usable() {
    let pair = Pair::open("shm/memory");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let handler = move |_: SharedMessage<'_>| {
        let before = counted.fetch_add(1, Ordering::SeqCst);
        assert!(before > 0, "expected by the test");
    };
    pair.interface.set_handler(1, handler).unwrap();
    pair.post(|| pair.client.am_short(1, 0, b"panic"));
    let start = Instant::now();
    while catch_unwind(AssertUnwindSafe(|| pair.progress())).is_ok() {
        assert!(start.elapsed() < DEADLINE);
    }
    assert_eq!(count.load(Ordering::SeqCst), 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            pair.post(|| pair.client.am_short(1, 0, b"next"));
            pair.until("the next message", || count.load(Ordering::SeqCst) == 2);
        });
    });
    // The lock is free, so a wait is not refused.
    pair.workers[0].wait(Some(Duration::ZERO)).unwrap();
}

#[test]
#[expect(unsafe_code, reason = "fork")]
fn a_forked_child_is_refused_even_if_a_thread_held_the_lock() {
    let pair = Pair::open("self/memory");
    let (entered, is_inside) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel();
    let handler = move |_: SharedMessage<'_>| {
        entered.send(()).unwrap();
        may_leave.recv_timeout(DEADLINE).unwrap();
    };
    pair.interface.set_handler(1, handler).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pair.client.am_short(1, 0, b"").unwrap());
        is_inside.recv_timeout(DEADLINE).unwrap();
        // SAFETY: the child runs functions of the library that neither allocate nor lock, and
        // `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let another = pair.client.clone();
            let refused = another.am_short(1, 0, b"") == Err(PostError::Forked)
                && pair.workers[0].progress() == 0
                && matches!(pair.workers[0].wait(None), Err(SharedWaitError::Forked));
            drop(another);
            // SAFETY: it ends the process, and runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        assert!(child > 0);
        let mut status = -1;
        // SAFETY: `status` is valid for writes.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        leave.send(()).unwrap();
        assert_eq!(status, 0);
    });
    pair.progress();
}
