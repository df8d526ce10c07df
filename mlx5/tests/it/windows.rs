//! Registered memory at other addresses, windows and views: on the software HCA and, if
//! `BAREWIRE_TEST_DEVICE` names one, on a device of the machine.

use crate::machine;

use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::layouts::cqe::Syndrome;
use barewire_mlx5::memory::{ChangeError, Interleaved, View};
use barewire_mlx5::request::{Bind, Binding, Inline, Read, SendInvalidate, Write};
use barewire_mlx5::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, Context, ControlFlags,
    DataSegment, Error, MemoryConfig, PostError, ProtectionDomain, RcConfig, RcPath, RcQueuePair,
    RemoteAddressSegment, Uar, Window, hca,
};

/// What the device reports for an access that a key does not allow.
const REFUSED: Result<(), Syndrome> = Err(Syndrome::RemoteAccess);
const DONE: ControlFlags = ControlFlags::COMPLETION;
/// For what follows a change of a key.
const AFTER: ControlFlags = ControlFlags::COMPLETION.union(ControlFlags::SMALL_FENCE);

/// A queue pair that owns memory, windows and views, and the peer that accesses them.
struct Node {
    completions: CompletionQueue,
    pair: RcQueuePair,
    peer: RcQueuePair,
    domain: ProtectionDomain,
}

fn contexts() -> impl Iterator<Item = Context> {
    let device = hca::Device::open(hca::Config::default()).unwrap();
    [Context::open(Soft::new(device)).unwrap()].into_iter().chain(machine::context())
}

/// Runs `test` on every device.
fn on_each(test: impl Fn(Node)) {
    for context in contexts() {
        test(Node::new(&context));
    }
}

impl Node {
    fn new(context: &Context) -> Self {
        let domain = ProtectionDomain::allocate(context).unwrap();
        Self::of(&domain)
    }

    fn of(domain: &ProtectionDomain) -> Self {
        let uar = Uar::allocate(domain.context()).unwrap();
        let completions = CompletionQueue::create(domain.context(), &uar, 1024).unwrap();
        let config = RcConfig::default();
        let [pair, peer] = [(); 2].map(|()| {
            RcQueuePair::create(domain, &uar, &completions, &completions, &config).unwrap()
        });
        let mut node = Self { completions, pair, peer, domain: domain.clone() };
        node.connect();
        node
    }

    fn connect(&mut self) {
        let paths = [RcPath::to(&self.peer.address()), RcPath::to(&self.pair.address())];
        self.connect_by(paths);
    }

    fn connect_by(&mut self, [there, here]: [RcPath; 2]) {
        self.pair.connect(&there).unwrap();
        self.peer.connect(&here).unwrap();
    }

    fn reset(&mut self) {
        self.pair.reset().unwrap();
        self.peer.reset().unwrap();
    }

    fn buffer(&self, length: usize) -> Buffer {
        Buffer::allocate(&self.domain, length, Access::all()).unwrap()
    }

    fn wait(&mut self) -> Completion {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(polled) = self.completions.poll() {
                return polled.completion();
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }

    /// Waits for the success of the last WQE of the owner.
    fn done(&mut self) {
        let completion = self.wait();
        assert_eq!(completion.kind, CompletionKind::Send);
        self.pair.send.reap(completion.wqe_counter);
        assert!(self.pair.send.is_idle());
    }

    /// Waits for the last WQE of the peer. After a failure both connect again.
    fn outcome(&mut self) -> Result<(), Syndrome> {
        let completion = self.wait();
        match completion.kind {
            CompletionKind::Send => {
                self.peer.send.reap(completion.wqe_counter);
                assert!(self.peer.send.is_idle());
                Ok(())
            }
            CompletionKind::SendError(failure) => {
                self.pair.reset().unwrap();
                self.peer.reset().unwrap();
                self.connect();
                Err(failure.syndrome().unwrap())
            }
            other => panic!("{other:?}"),
        }
    }

    /// The peer writes 8 bytes.
    fn write(&mut self, byte: u8, remote: RemoteAddressSegment) -> Result<(), Syndrome> {
        self.put(&[byte; 8], remote)
    }

    fn put(&mut self, bytes: &[u8], remote: RemoteAddressSegment) -> Result<(), Syndrome> {
        self.peer.send.post(Write { local: Inline(bytes), remote }, DONE).unwrap();
        self.outcome()
    }

    /// The peer reads.
    fn read(&mut self, into: DataSegment, remote: RemoteAddressSegment) -> Result<(), Syndrome> {
        self.peer.send.post(Read { local: into, remote }, DONE).unwrap();
        self.outcome()
    }
}

fn bytes<const N: usize>(buffer: &Buffer, offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    buffer.read(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn memory_is_found_at_its_own_addresses() {
    on_each(|mut node| {
        let far = MemoryConfig::new(Access::all()).at(0x7_0000_0000);
        let memory = Buffer::allocate(&node.domain, 8192, far).unwrap();
        assert_eq!(memory.region().address(), 0x7_0000_0000);
        node.write(3, memory.region().remote(4096)).unwrap();
        assert_eq!(bytes(&memory, 4096), [3; 8]);
        // Local segments have these addresses, too.
        let there = node.buffer(64);
        let local = memory.region().segment(4096, 8).unwrap();
        assert_eq!(local.address.get(), 0x7_0000_1000);
        node.pair.send.post(Write { local, remote: there.region().remote(0) }, DONE).unwrap();
        node.done();
        assert_eq!(bytes(&there, 0), [3; 8]);

        let based = MemoryConfig::new(Access::all()).zero_based();
        let memory = Buffer::allocate(&node.domain, 100, based).unwrap();
        let remote = memory.region().to_remote();
        assert_eq!((remote.address, remote.length), (0, 100));
        node.write(5, RemoteAddressSegment::new(92, remote.key)).unwrap();
        assert_eq!(bytes(&memory, 92), [5; 8]);
        // Its own address is outside, and so is the byte after the end.
        let pointer = memory.region().as_ptr().addr().get() as u64;
        for address in [pointer, 93] {
            assert_eq!(node.write(6, RemoteAddressSegment::new(address, remote.key)), REFUSED);
        }
        assert_eq!(bytes(&memory, 92), [5; 8]);
    });
}

#[test]
fn an_address_with_another_offset_in_a_page_is_refused() {
    on_each(|node| {
        for address in [1, 4097, !4095] {
            let config = MemoryConfig::new(Access::empty()).at(address);
            let refused = Buffer::allocate(&node.domain, 4096 * 2, config).unwrap_err();
            assert!(matches!(refused, Error::Parameter { .. }), "{address} {refused}");
        }
    });
}

#[test]
fn memory_on_demand_is_used_like_any() {
    on_each(|mut node| {
        let config = MemoryConfig::new(Access::all()).on_demand();
        let memory = Buffer::allocate(&node.domain, 1 << 20, config);
        if !node.domain.context().capabilities().on_demand {
            let refused = memory.unwrap_err().to_string();
            assert!(refused.contains("mem_page_fault is 0"), "{refused}");
            return;
        }
        let memory = memory.unwrap();
        node.write(9, memory.region().remote(1 << 19)).unwrap();
        assert_eq!(bytes(&memory, 1 << 19), [9; 8]);
    });
}

#[test]
fn a_window_grants_access_and_ends_it() {
    on_each(|mut node| {
        let read_only = Access::LOCAL_WRITE;
        let memory = Buffer::allocate(&node.domain, 4096, read_only).unwrap();
        let result = node.buffer(64);
        memory.write(0, &[1; 4096]).unwrap();
        let mut window = Window::create(&node.domain).unwrap();
        assert_eq!(window.remote(), None);
        let mut keys = Vec::new();
        for round in 0..3 {
            let at = 100 * round;
            let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let queue = &mut node.pair.send;
            window.bind(queue, memory.region(), at..at + 64, rights, DONE).unwrap();
            node.done();
            let remote = window.remote().unwrap();
            assert_eq!(
                (remote.address, remote.length),
                (memory.region().address() + at as u64, 64)
            );
            keys.push(remote.key);
            node.write(round as u8 + 7, RemoteAddressSegment::new(remote.address + 56, remote.key))
                .unwrap();
            assert_eq!(bytes(&memory, at + 56), [round as u8 + 7; 8]);
            let again = window.bind(&mut node.pair.send, memory.region(), 0..8, rights, DONE);
            assert_eq!(again, Err(ChangeError::Bound));
            // The memory itself is not open to peers, and the window ends where it ends.
            assert_eq!(node.write(9, memory.region().remote(at)), REFUSED);
            assert_eq!(
                node.write(9, RemoteAddressSegment::new(remote.address + 57, remote.key)),
                REFUSED
            );
            window.invalidate(&mut node.pair.send, DONE).unwrap();
            node.done();
            assert_eq!(window.remote(), None);
            // The device refuses the old key, also after the next bind.
            let local = result.region().segment(0, 8).unwrap();
            for key in &keys {
                assert_eq!(
                    node.read(local, RemoteAddressSegment::new(remote.address, *key)),
                    REFUSED
                );
            }
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 3);
        let free = window.invalidate(&mut node.pair.send, DONE);
        assert_eq!(free, Err(ChangeError::Free));
    });
}

#[test]
fn windows_have_their_rights_and_addresses() {
    on_each(|mut node| {
        let memory = node.buffer(4096);
        let result = node.buffer(64);
        let local = result.region().segment(0, 8).unwrap();
        memory.write(1000, b"readable").unwrap();
        let mut window = Window::create(&node.domain).unwrap();
        let (queue, region) = (&mut node.pair.send, memory.region());
        window.bind_zero_based(queue, region, 1000..1008, Access::REMOTE_READ, DONE).unwrap();
        node.done();
        let remote = window.remote().unwrap();
        assert_eq!((remote.address, remote.length), (0, 8));
        let remote = RemoteAddressSegment::new(0, remote.key);
        node.read(local, remote).unwrap();
        assert_eq!(&bytes::<8>(&result, 0), b"readable");
        assert_eq!(node.write(1, remote), REFUSED);
        assert_eq!(&bytes::<8>(&memory, 1000), b"readable");
        // A dropped window is gone.
        drop(window);
        assert_eq!(node.read(local, remote), REFUSED);
    });
}

/// A send of the peer invalidates the window.
#[test]
fn a_peer_gives_its_access_back() {
    on_each(|mut node| {
        let memory = node.buffer(4096);
        let mut window = Window::create(&node.domain).unwrap();
        let (queue, region) = (&mut node.pair.send, memory.region());
        window.bind(queue, region, 0..64, Access::REMOTE_WRITE, DONE).unwrap();
        node.done();
        let remote = window.remote().unwrap();
        assert!(node.pair.receive.push(memory.region().segment(1024, 64).unwrap()));
        node.pair.receive.publish();
        node.peer
            .send
            .post(SendInvalidate { local: Inline(b"bye"), rkey: remote.key }, DONE)
            .unwrap();
        let mut invalidated = None;
        for _ in 0..2 {
            match node.wait().kind {
                CompletionKind::ReceiveInvalidate(key) => invalidated = Some(key),
                kind => assert_eq!(kind, CompletionKind::Send),
            }
        }
        node.peer.send.reap(node.peer.send.last_index().unwrap().0);
        assert_eq!(invalidated, Some(remote.key));
        assert!(!window.invalidated(remote.key ^ 1));
        assert!(window.invalidated(remote.key));
        assert_eq!(node.write(1, RemoteAddressSegment::new(remote.address, remote.key)), REFUSED);
        window.bind(&mut node.pair.send, region, 0..64, Access::REMOTE_WRITE, DONE).unwrap();
        node.done();
    });
}

#[test]
fn another_queue_pair_may_neither_use_nor_end_a_window() {
    on_each(|mut node| {
        let memory = node.buffer(64);
        let mut window = Window::create(&node.domain).unwrap();
        let (queue, region) = (&mut node.pair.send, memory.region());
        window.bind(queue, region, 0..64, Access::REMOTE_WRITE, DONE).unwrap();
        node.done();
        let remote = window.remote().unwrap();
        let first = node.pair.number();
        let mut other = Node::of(&node.domain);
        let refused = window.invalidate(&mut other.pair.send, DONE);
        assert_eq!(refused, Err(ChangeError::QueuePair(first)));
        assert_eq!(other.write(1, RemoteAddressSegment::new(remote.address, remote.key)), REFUSED);
        node.write(1, RemoteAddressSegment::new(remote.address, remote.key)).unwrap();
    });
}

#[test]
fn a_shared_window_is_for_every_queue_pair_of_the_domain() {
    on_each(|mut node| {
        let mut other = Node::of(&node.domain);
        let memory = node.buffer(4096);
        let mut window = Window::create_shared(&node.domain).unwrap();
        for round in 0..2 {
            let (queue, region) = (&mut node.pair.send, memory.region());
            window.bind_shared(queue, region, 64..128, Access::REMOTE_WRITE, DONE).unwrap();
            node.done();
            let remote = window.remote().unwrap();
            assert_eq!((remote.address, remote.length), (region.address() + 64, 64));
            let at = |offset| RemoteAddressSegment::new(remote.address + offset, remote.key);
            node.write(round + 1, at(0)).unwrap();
            other.write(round + 3, at(8)).unwrap();
            assert_eq!(bytes(&memory, 64), [round + 1; 8]);
            assert_eq!(bytes(&memory, 72), [round + 3; 8]);
            assert_eq!(other.write(9, at(57)), REFUSED);
            // Any of them ends it.
            window.invalidate(&mut other.pair.send, DONE).unwrap();
            other.done();
            assert_eq!((window.remote(), node.write(9, at(0))), (None, REFUSED));
            assert_eq!(other.write(9, at(8)), REFUSED);
        }
    });
}

/// A send of a peer ends neither a shared window, nor a window that is not its own, nor a view.
#[test]
fn a_peer_ends_only_its_own_window() {
    on_each(|mut node| {
        let memory = node.buffer(4096);
        let region = memory.region();
        let mut shared = Window::create_shared(&node.domain).unwrap();
        let access = Access::REMOTE_WRITE;
        let mut queue = &mut node.pair.send;
        assert_eq!(shared.bind(queue, region, 0..64, access, DONE), Err(ChangeError::Sharing));
        shared.bind_shared(queue, region, 0..64, access, DONE).unwrap();
        node.done();
        let mut view = View::create(&node.domain, 4).unwrap();
        queue = &mut node.pair.send;
        view.join(queue, access, &[(region, 64..128)], DONE).unwrap();
        node.done();
        let mut other = Node::of(&node.domain);
        let mut own = Window::create(&node.domain).unwrap();
        queue = &mut other.pair.send;
        assert_eq!(own.bind_shared(queue, region, 0..8, access, DONE), Err(ChangeError::Sharing));
        own.bind(queue, region, 128..192, access, DONE).unwrap();
        other.done();
        let [shared, view, own] =
            [shared.remote().unwrap(), view.to_remote(), own.remote().unwrap()];
        for key in [shared.key, view.key, own.key, region.rkey()] {
            node.reset();
            // With a short time until the peer gives up: 8 times 17 ms.
            let ends = [node.peer.address(), node.pair.address()];
            node.connect_by(ends.map(|end| RcPath::to(&end).ack_timeout(12)));
            assert!(node.pair.receive.push(region.segment(1024, 64).unwrap()));
            node.pair.receive.publish();
            node.peer.send.post(SendInvalidate { local: Inline(b"bye"), rkey: key }, DONE).unwrap();
            // The owner's receive has an error, and its queue pair does not respond any more
            // (IBTA 9.9.3, class J).
            let mut silent = false;
            for _ in 0..2 {
                match node.wait().kind {
                    CompletionKind::SendError(error) => {
                        silent = error.syndrome() == Some(Syndrome::TransportRetryExceeded);
                    }
                    CompletionKind::ReceiveError(_) => {}
                    kind => panic!("{kind:?}"),
                }
            }
            assert!(silent, "{key:#x}");
        }
        node.reset();
        node.connect();
        for remote in [shared, view] {
            node.write(5, RemoteAddressSegment::new(remote.address, remote.key)).unwrap();
        }
        other.write(5, RemoteAddressSegment::new(own.address, own.key)).unwrap();
        assert_eq!(bytes(&memory, 0), [5; 8]);
        assert_eq!(bytes(&memory, 64), [5; 8]);
        assert_eq!(bytes(&memory, 128), [5; 8]);
    });
}

#[test]
fn a_window_is_renewed_after_its_queue_pair_failed() {
    on_each(|mut node| {
        let memory = node.buffer(4096);
        let mut window = Window::create(&node.domain).unwrap();
        let access = Access::REMOTE_WRITE;
        let (queue, region) = (&mut node.pair.send, memory.region());
        window.bind(queue, region, 0..64, access, DONE).unwrap();
        node.done();
        let old = window.remote().unwrap();
        // The device is stopped before it gets the invalidation, which it flushes.
        node.pair.to_error().unwrap();
        window.invalidate(&mut node.pair.send, DONE).unwrap();
        let flushed = node.wait();
        assert!(matches!(flushed.kind, CompletionKind::SendError(_)), "{flushed:?}");
        node.pair.reset().unwrap();
        node.peer.reset().unwrap();
        node.connect();
        window.renew().unwrap();
        window.bind(&mut node.pair.send, region, 0..64, access, DONE).unwrap();
        node.done();
        let new = window.remote().unwrap();
        assert_ne!(old.key >> 8, new.key >> 8);
        node.write(5, RemoteAddressSegment::new(new.address, new.key)).unwrap();
        assert_eq!(node.write(6, RemoteAddressSegment::new(old.address, old.key)), REFUSED);
        assert_eq!(bytes(&memory, 0), [5; 8]);
    });
}

#[test]
fn joined_ranges_are_one() {
    on_each(|mut node| {
        let (one, other, result) = (node.buffer(64), node.buffer(64), node.buffer(64));
        one.write(0, b"onetwothree").unwrap();
        other.write(0, b"fourfive").unwrap();
        let mut view = View::create(&node.domain, 4).unwrap();
        assert!(view.is_empty());
        let ranges = [
            (one.region(), 3..6),
            (other.region(), 4..8),
            (one.region(), 0..3),
            (other.region(), 0..4),
        ];
        let rights = Access::all();
        view.join(&mut node.pair.send, rights, &ranges, DONE).unwrap();
        node.done();
        assert_eq!(view.len(), 14);
        // Gathered by a write, and by the peer's read.
        let gathered = view.segment(0, 14).unwrap();
        node.pair
            .send
            .post(Write { local: gathered, remote: result.region().remote(0) }, AFTER)
            .unwrap();
        node.done();
        assert_eq!(&bytes::<14>(&result, 0), b"twofiveonefour");
        node.read(result.region().segment(20, 5).unwrap(), view.remote(5)).unwrap();
        assert_eq!(&bytes::<5>(&result, 20), b"veone");
        // Scattered by a write of the peer.
        node.put(b"TWOFIVEONEFOUR", view.remote(0)).unwrap();
        assert_eq!(&bytes::<11>(&one, 0), b"ONETWOthree");
        assert_eq!(&bytes::<8>(&other, 0), b"FOURFIVE");
        assert_eq!(view.segment(1, 14), None);
        // A new layout has a new key, and the old one is refused.
        let old = view.to_remote();
        view.join(&mut node.pair.send, rights, &ranges[..1], DONE).unwrap();
        node.done();
        assert_eq!(view.to_remote().length, 3);
        assert_eq!(node.put(b"x", RemoteAddressSegment::new(0, old.key)), REFUSED);
        assert_eq!(node.put(b"four", view.remote(0)), REFUSED, "beyond the end");
    });
}

#[test]
fn a_column_of_a_matrix_is_one_range() {
    const SIDE: usize = 16;
    on_each(|mut node| {
        let (matrix, column) = (node.buffer(SIDE * SIDE * 4), node.buffer(SIDE * 4));
        for at in 0..SIDE * SIDE {
            matrix.write(at * 4, &(at as u32).to_ne_bytes()).unwrap();
        }
        let mut view = View::create(&node.domain, 2).unwrap();
        let third = Interleaved { memory: matrix.region(), offset: 12, bytes: 4, stride: SIDE * 4 };
        view.stride(&mut node.pair.send, Access::all(), third, SIDE as u32, DONE).unwrap();
        node.done();
        assert_eq!(view.len(), SIDE as u64 * 4);
        let local = view.segment(0, SIDE as u32 * 4).unwrap();
        node.pair.send.post(Write { local, remote: column.region().remote(0) }, AFTER).unwrap();
        node.done();
        for row in 0..SIDE {
            assert_eq!(u32::from_ne_bytes(bytes(&column, row * 4)), (row * SIDE + 3) as u32);
        }
        // And back, to the column beside it, through two ranges that alternate.
        let next = |column: usize| Interleaved { offset: column * 4, ..third };
        let pair = [next(5), next(9)];
        view.interleave(&mut node.pair.send, Access::all(), &pair, 8, DONE).unwrap();
        node.done();
        let from = column.region().segment(0, 64).unwrap();
        node.pair.send.post(Write { local: from, remote: view.remote(0) }, AFTER).unwrap();
        node.done();
        for row in 0..8 {
            let word =
                |column: usize| u32::from_ne_bytes(bytes(&matrix, (row * SIDE + column) * 4));
            assert_eq!(
                [word(5), word(9)],
                [row * 2 * SIDE + 3, (row * 2 + 1) * SIDE + 3].map(|at| at as u32)
            );
        }
    });
}

#[test]
fn wrong_layouts_are_refused_before_the_device_sees_them() {
    on_each(|mut node| {
        let memory = node.buffer(1 << 17);
        let read_only = Buffer::allocate(&node.domain, 64, Access::REMOTE_READ).unwrap();
        let foreign = ProtectionDomain::allocate(node.domain.context()).unwrap();
        let foreign = Buffer::allocate(&foreign, 64, Access::all()).unwrap();
        let (region, queue) = (memory.region(), &mut node.pair.send);
        let posted = queue.posted();
        let mut view = View::create(&node.domain, 3).unwrap();
        let mut window = Window::create(&node.domain).unwrap();
        let size = memory.region().len();
        #[expect(clippy::reversed_empty_ranges, reason = "refused")]
        for range in [0..size + 1, size..size + 1, 5..4, usize::MAX..0] {
            let join = view.join(queue, Access::empty(), &[(region, range.clone())], DONE);
            assert!(matches!(join, Err(ChangeError::Range(_))), "{join:?}");
            let bind = window.bind(queue, region, range, Access::REMOTE_READ, DONE);
            assert!(matches!(bind, Err(ChangeError::Range(_))), "{bind:?}");
        }
        let empty = view.join(queue, Access::empty(), &[(region, 4..4)], DONE);
        assert_eq!(empty, Err(ChangeError::Length(0)));
        let five = [(); 5].map(|()| (region, 0..8));
        let many = view.join(queue, Access::empty(), &five, DONE);
        assert_eq!(many, Err(ChangeError::Entries { got: 5, room: 4 }));
        let lacking = view.join(queue, Access::all(), &[(read_only.region(), 0..8)], DONE);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        assert_eq!(lacking, Err(ChangeError::Rights(rights)));
        let lacking = window.bind(queue, read_only.region(), 0..8, Access::REMOTE_WRITE, DONE);
        assert_eq!(lacking, Err(ChangeError::Rights(Access::LOCAL_WRITE)));
        let other = window.bind(queue, foreign.region(), 0..8, Access::REMOTE_READ, DONE);
        assert_eq!(other, Err(ChangeError::Domain));
        let good = Interleaved { memory: region, offset: 0, bytes: 8, stride: 64 };
        for (wide, count) in [
            (Interleaved { stride: 1 << 16, ..good }, 2),
            (Interleaved { bytes: 1 << 16, ..good }, 2),
            (Interleaved { stride: 0, ..good }, 2),
            (Interleaved { bytes: 0, ..good }, 2),
        ] {
            let refused = view.stride(queue, Access::empty(), wide, count, DONE);
            assert!(matches!(refused, Err(ChangeError::Wide(_))), "{refused:?}");
        }
        for (elements, count) in [
            (good, 2049),
            (good, u32::MAX),
            (Interleaved { offset: size - 7, ..good }, 1),
            (Interleaved { offset: usize::MAX, ..good }, 1),
        ] {
            let refused = view.stride(queue, Access::empty(), elements, count, DONE);
            assert!(matches!(refused, Err(ChangeError::Range(_))), "{refused:?}");
        }
        let none = view.stride(queue, Access::empty(), good, 0, DONE);
        assert_eq!(none, Err(ChangeError::Length(0)));
        assert_eq!(queue.posted(), posted);
        view.stride(queue, Access::empty(), good, 2048, DONE).unwrap();
        while queue.post(BIND, ControlFlags::empty()).is_ok() {}
        let full = view.stride(queue, Access::empty(), good, 2048, DONE);
        assert_eq!(full, Err(ChangeError::Post(PostError::QueueFull)));
    });
}

const BIND: Bind = Bind {
    free: 1,
    key: 2,
    binding: Binding { range: DataSegment::new(0, 8, 0), start: 0, access: Access::REMOTE_READ },
    is_shared: false,
};

#[test]
fn too_many_entries_are_refused() {
    on_each(|node| {
        for entries in [0, 25, u32::MAX] {
            let refused = View::create(&node.domain, entries).unwrap_err();
            assert!(matches!(refused, Error::Parameter { .. }), "{refused}");
        }
        // Objects of verbs have room for four.
        match View::create(&node.domain, 24) {
            Ok(_) => {}
            Err(Error::Unsupported { reason, .. }) => assert!(reason.contains("DEVX")),
            Err(other) => panic!("{other}"),
        }
    });
}
