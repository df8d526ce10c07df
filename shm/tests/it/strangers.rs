//! Tests with foreign processes and misbehaving peers: they can cause a bounded cost, and nothing
//! else.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_shm::{
    BulkReceiver, Deliver, LinkError, MESSAGE_WORDS, Peer, Place, Port, PortAddress, PortConfig,
    RegionPlace, RegionSet, SendError,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

const ROLE: &str = "BAREWIRE_SHM_STRANGER";
const SECRET: u64 = 42;
const DEADLINE: Duration = Duration::from_mins(1);
/// A call that has not returned after this time is considered blocked.
const BLOCKED: Duration = Duration::from_mins(1);

/// Accepts every message.
#[derive(Default)]
struct Inbox {
    scratch: [u64; MESSAGE_WORDS],
    came: u64,
    broken: Vec<(i32, String)>,
}

impl Deliver for Inbox {
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.scratch
    }

    fn wants_more(&self) -> bool {
        true
    }

    fn short(&mut self, _: u8, _: usize) {
        self.came += 1;
    }

    fn buffered(
        &mut self,
        _: u8,
        buffers: &Rc<BulkReceiver>,
        number: u8,
        _: NonNull<u8>,
        _: usize,
    ) {
        buffers.give(number);
    }

    fn broken(&mut self, process: i32, why: LinkError) {
        self.broken.push((process, why.to_string()));
    }

    fn peer(&mut self, _: u32) {}
}

/// Returns the address of a port that no other test opens.
fn address() -> PortAddress {
    PortAddress { secret: SECRET.into(), ..PortAddress::random().unwrap() }
}

/// Uses the abstract namespace, which every user can access.
fn abstract_place() -> PortConfig {
    PortConfig { place: Place::Abstract, ..PortConfig::default() }
}

fn name(address: PortAddress) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("barewire-{:016x}", address.number).as_bytes())
        .unwrap()
}

fn socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .unwrap()
}

fn not_run(reason: &str) {
    let _ = writeln!(io::stderr(), "not run: {reason}");
}

/// Encodes a message of the protocol.
fn message(kind: u8, numbers: &[u64]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..7].copy_from_slice(b"bwshm\r\n");
    bytes[7] = 3;
    bytes[8] = kind;
    for (place, number) in bytes[16..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let parts = [io::IoSlice::new(bytes)];
    let _ = rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL);
}

/// Calls progress until the port has sent something over `socket`, and receives it.
fn await_response(port: &mut Port, inbox: &mut Inbox, socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let started = Instant::now();
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    while rustix::event::poll(&mut fds, Some(&now)) != Ok(1) {
        port.progress(inbox);
        assert!(started.elapsed() < DEADLINE, "no response");
    }
    receive(socket)
}

/// Calls progress for long enough to check everything.
fn settle(port: &mut Port, inbox: &mut Inbox) {
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(300) {
        port.progress(inbox);
    }
}

fn receive(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [io::IoSliceMut::new(&mut bytes)];
    let came = rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::empty()).unwrap().bytes;
    let descriptors = control.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors.collect::<Vec<_>>()),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    (bytes[..came].to_vec(), descriptors)
}

fn memfd(size: u64, flags: MemfdFlags) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("hostile", flags | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, size)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A port of an attacker, to which one peer connects.
struct HostilePort {
    listener: OwnedFd,
    address: PortAddress,
}

impl HostilePort {
    fn open() -> Self {
        let (listener, address) = (socket(), address());
        rustix::net::bind(&listener, &name(address)).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        Self { listener, address }
    }

    /// Connects a peer, and sends it the memory of a port with 4 slots whose wake flag is set.
    fn welcome(&self, more: &[BorrowedFd<'_>]) -> (Peer, OwnedFd) {
        let peer = Peer::connect(self.address, &PortConfig::default()).unwrap();
        let link = rustix::net::accept(&self.listener).unwrap();
        assert_eq!(receive(&link).0[..9], message(1, &[])[..9]);
        let inbox = memfd(6 * 64, MemfdFlags::empty()).unwrap();
        rustix::io::pwrite(&inbox, &1u64.to_ne_bytes(), 0).unwrap();
        let descriptors: Vec<_> = [inbox.as_fd()].into_iter().chain(more.iter().copied()).collect();
        send(&link, &message(2, &[1, 4, 7]), &descriptors);
        (peer, link)
    }
}

fn error_of(peer: &mut Peer) -> String {
    let started = Instant::now();
    while peer.tend().is_ok() {
        assert!(started.elapsed() < DEADLINE, "the peer reports no error");
    }
    peer.error().unwrap().to_string()
}

/// Runs `role` in a child process, which must end in time: a blocked call fails the test instead of
/// blocking all tests.
fn run_child(role: &str, check: impl FnOnce(&str)) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "strangers::other_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > BLOCKED {
            let wchan =
                std::fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap_or_default();
            child.kill().unwrap();
            panic!("{role}: blocked in {wchan} after {BLOCKED:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{role}: {output:?}");
    check(&String::from_utf8_lossy(&output.stdout));
}

/// The code of the child processes. Does nothing in a normal run of the tests.
#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("pipe", _) => wake_a_port_with_a_full_pipe(),
        ("flags", _) => sleep_while_a_sender_changes_flags(),
        ("descriptors", _) => run_out_of_descriptors(),
        ("newcomers", _) => wait_for_newcomers_to_leave(),
        ("filesize", _) => make_a_segment_beyond_the_limit(),
        ("flood", number) => flood(PortAddress { number: number.parse().unwrap(), secret: 0 }),
        ("listen", directory) => listen(directory),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pipe_in_place_of_a_wake_up_blocks_no_post() {
    run_child("pipe", |_| ());
}

fn wake_a_port_with_a_full_pipe() {
    let port = HostilePort::open();
    let (_read, write) = rustix::pipe::pipe().unwrap();
    rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&write, &[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::empty()).unwrap();
    // First without an additional descriptor, as the protocol requires, then with one.
    for more in [&[][..], &[write.as_fd()]] {
        let (mut peer, _link) = port.welcome(more);
        if more.is_empty() {
            let started = Instant::now();
            while !peer.is_ready() {
                peer.tend().unwrap();
                assert!(started.elapsed() < DEADLINE);
            }
            assert_eq!(peer.send(1, 0, b"8 bytes."), Ok(()), "the post wakes the receiver");
        } else {
            assert!(error_of(&mut peer).contains("descriptors"), "{:?}", peer.error());
        }
    }
}

#[test]
fn file_flags_of_a_sender_block_no_sleeper() {
    run_child("flags", |_| ());
}

fn sleep_while_a_sender_changes_flags() {
    let here = address();
    let mut port = Port::open(here, &abstract_place(), &RegionSet::new(1)).unwrap();
    let mut inbox = Inbox::default();
    let link = socket();
    rustix::net::connect(&link, &name(here)).unwrap();
    send(&link, &message(1, &[SECRET, 0]), &[]);
    let (welcome, descriptors) = await_response(&mut port, &mut inbox, &link);
    assert_eq!(welcome[..9], message(2, &[])[..9]);
    for descriptor in descriptors.iter().chain([&link]) {
        rustix::fs::fcntl_setfl(descriptor, rustix::fs::OFlags::empty()).unwrap();
    }
    let started = Instant::now();
    for _ in 0..3 {
        while !port.watcher().arm().unwrap() {
            port.progress(&mut inbox);
            assert!(started.elapsed() < DEADLINE);
        }
        send(&link, &message(9, &[]), &[]);
        let mut fds = [rustix::event::PollFd::new(&port, rustix::event::PollFlags::IN)];
        let timeout = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(
            rustix::event::poll(&mut fds, Some(&timeout)),
            Ok(1),
            "the sleeper was not woken"
        );
        settle(&mut port, &mut inbox);
    }
    assert_eq!(inbox.broken, []);
}

#[test]
fn regions_that_were_not_requested_are_refused() {
    let port = HostilePort::open();
    let (mut peer, link) = port.welcome(&[]);
    let region = memfd(8192, MemfdFlags::empty()).unwrap();
    send(&link, &message(4, &[77, 8192]), &[region.as_fd()]);
    let error = error_of(&mut peer);
    assert!(error.contains("a region that was not requested"), "{error}");
    assert_eq!(peer.region(77, 1).map(|_| ()), Err(SendError::Lost));
}

/// A forked child has the descriptors of its parent, so that a socket stays open there which the
/// port has closed.
#[test]
fn the_end_of_a_refused_sender_wakes_no_port_whose_child_has_its_socket() {
    let (there, mut inbox) = (address(), Inbox::default());
    let mut port = Port::open(there, &abstract_place(), &RegionSet::new(1)).unwrap();
    let stranger = socket();
    rustix::net::connect(&stranger, &name(there)).unwrap();
    settle(&mut port, &mut inbox);
    // SAFETY: the child calls nothing but a function that waits for signals.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    // A greeting with another secret.
    send(&stranger, &message(1, &[7, 0]), &[]);
    await_response(&mut port, &mut inbox, &stranger);
    rustix::net::shutdown(&stranger, rustix::net::Shutdown::Both).unwrap();
    settle(&mut port, &mut inbox);
    let mut fds = [rustix::event::PollFd::new(&port, rustix::event::PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let events = rustix::event::poll(&mut fds, Some(&now)).unwrap();
    // SAFETY: ends the child of this process, and takes its status.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(events, 0, "a port without an event is readable");
}

#[test]
fn a_region_in_huge_pages_is_refused_unless_it_is_wanted() {
    // Creating the file needs no reserved pages, only mapping it does, and the peer refuses it
    // before.
    let Ok(region) = memfd(1 << 21, MemfdFlags::HUGETLB) else {
        return not_run("this kernel makes no files of huge pages");
    };
    let port = HostilePort::open();
    let (mut peer, link) = port.welcome(&[]);
    let started = Instant::now();
    while !peer.is_ready() {
        peer.tend().unwrap();
        assert!(started.elapsed() < DEADLINE);
    }
    assert_eq!(peer.region(77, 4096).map(|_| ()), Err(SendError::Full));
    assert_eq!(receive(&link).0, message(8, &[77]));
    send(&link, &message(4, &[77, 1 << 21]), &[region.as_fd()]);
    let error = error_of(&mut peer);
    assert!(error.contains("huge pages"), "{error}");
}

/// Requests regions without having keys, and more regions than it receives.
#[test]
fn a_sender_receives_only_regions_that_it_has_keys_to() {
    let here = address();
    let regions = RegionSet::new(1);
    let region = regions.region(100).unwrap();
    let mut port = Port::open(here, &abstract_place(), &regions).unwrap();
    let mut inbox = Inbox::default();
    let link = socket();
    rustix::net::connect(&link, &name(here)).unwrap();
    send(&link, &message(1, &[SECRET, 0]), &[]);
    assert_eq!(await_response(&mut port, &mut inbox, &link).1.len(), 1, "the inbox, but no region");
    for guess in [0, 1, 2, region.number() ^ 4, u64::MAX] {
        send(&link, &message(8, &[guess]), &[]);
        let (response, descriptors) = await_response(&mut port, &mut inbox, &link);
        assert_eq!((&response[..], descriptors.len()), (&message(5, &[guess])[..], 0));
    }
    send(&link, &message(8, &[region.number()]), &[]);
    let (response, descriptors) = await_response(&mut port, &mut inbox, &link);
    assert_eq!((&response[..], descriptors.len()), (&message(4, &[region.number(), 4196])[..], 1));
    // Does not read the responses any more, until the port ends the connection.
    let flags = rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&link, flags).unwrap();
    let started = Instant::now();
    while inbox.broken.is_empty() {
        send(&link, &message(8, &[region.number()]), &[]);
        port.progress(&mut inbox);
        assert!(started.elapsed() < DEADLINE, "the number of requests is not limited");
    }
    settle(&mut port, &mut inbox);
    assert_eq!(inbox.broken.len(), 1, "{:?}", inbox.broken);
}

/// Connects to a port of this process over its socket.
fn connected(there: PortAddress, port: &mut Port, inbox: &mut Inbox) -> Peer {
    let mut peer = Peer::connect(there, &abstract_place()).unwrap();
    let started = Instant::now();
    while !peer.is_ready() {
        port.progress(inbox);
        peer.tend().unwrap();
        assert!(started.elapsed() < DEADLINE);
    }
    peer
}

/// The owner makes no progress after it has accepted the connection.
#[test]
fn a_region_is_mapped_by_its_place_without_the_owner() {
    let here = address();
    let regions = RegionSet::new(1);
    let region = regions.region(100).unwrap();
    let mut port = Port::open(here, &abstract_place(), &regions).unwrap();
    let mut inbox = Inbox::default();
    let started = Instant::now();
    let mut peer = connected(here, &mut port, &mut inbox);
    let mapped = peer.region_at(&region.place(), 100).unwrap().unwrap();
    // SAFETY: the two addresses lie in mappings of a region of 100 bytes, which only this thread
    // accesses.
    unsafe {
        region.mapped().start().add(96).write_volatile(7);
        assert_eq!(mapped.start().add(96).read_volatile(), 7);
    }
    // A process id of another namespace: the owner passes the region on.
    let other = regions.region(100).unwrap();
    let elsewhere = RegionPlace { process: 1, ..other.place() };
    assert_eq!(peer.region_at(&elsewhere, 100).map(drop), Err(SendError::Full));
    while !peer.region_at(&elsewhere, 100).is_ok_and(|mapped| mapped.is_some()) {
        port.progress(&mut inbox);
        assert!(started.elapsed() < DEADLINE);
    }
    // A descriptor that is closed: only the owner knows that it has dropped the region.
    let dropped = regions.region(100).unwrap().place();
    assert_eq!(peer.region_at(&dropped, 100).map(drop), Err(SendError::Full));
    while !peer.region_at(&dropped, 100).is_ok_and(|mapped| mapped.is_none()) {
        port.progress(&mut inbox);
        assert!(started.elapsed() < DEADLINE);
    }
}

#[test]
fn a_lack_of_descriptors_is_reported_with_the_numbers() {
    run_child("descriptors", |_| ());
}

fn run_out_of_descriptors() {
    let here = address();
    let regions = RegionSet::new(1);
    let region = regions.region(100).unwrap();
    let mut port = Port::open(here, &abstract_place(), &regions).unwrap();
    let mut inbox = Inbox::default();
    let started = Instant::now();
    let mut peer = connected(here, &mut port, &mut inbox);
    let mut kept = Vec::new();
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) })
        .unwrap();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        kept.push(file);
    }
    let refused = Peer::connect(here, &abstract_place()).unwrap_err().to_string();
    assert!(refused.contains("64 of 64 are open") && refused.contains("ulimit -n"), "{refused}");
    while peer.region(region.number(), 100).is_err() {
        if let Some(error) = peer.error() {
            let error = error.to_string();
            assert!(error.contains("64 of 64 are open") && error.contains("ulimit -n"), "{error}");
            return;
        }
        port.progress(&mut inbox);
        assert!(started.elapsed() < DEADLINE);
    }
    panic!("no request failed for want of a descriptor");
}

#[test]
fn a_limit_of_file_sizes_is_an_error() {
    run_child("filesize", |_| ());
}

fn make_a_segment_beyond_the_limit() {
    // The limit of `ulimit -f 10`.
    setrlimit(Resource::Fsize, Rlimit { current: Some(10 << 10), maximum: Some(10 << 10) })
        .unwrap();
    let here = address();
    let error = Port::open(here, &abstract_place(), &RegionSet::new(1)).unwrap_err().to_string();
    assert!(error.contains("ulimit -f"), "{error}");
    let error = RegionSet::new(1).region(1 << 20).map(drop).unwrap_err().to_string();
    assert!(error.contains("10240") && error.contains("ulimit -f"), "{error}");
}

/// Connects without end.
fn flood(there: PortAddress) {
    let name = name(there);
    let mut open = std::collections::VecDeque::new();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        if rustix::net::connect(&socket, &name).is_err() {
            std::thread::yield_now();
            continue;
        }
        open.push_back(socket);
        if open.len() > 200 {
            open.pop_front();
        }
    }
}

/// A process that is killed when this value is dropped.
struct Other(Child, PathBuf);

impl Other {
    /// Starts the process as user 65534 if this process may change users.
    fn flooding(there: PortAddress) -> Self {
        use std::os::unix::process::CommandExt;
        let unique = format!("barewire-stranger-{}-{:x}", std::process::id(), there.number);
        let program = std::env::temp_dir().join(unique);
        crate::support::copy_of_this_program(&program);
        let mut command = Command::new(&program);
        command.args(["--exact", "strangers::other_process", "--test-threads=1"]).current_dir("/");
        command.env(ROLE, format!("flood {}", there.number)).stdin(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(65534);
        }
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(), program)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait(), std::fs::remove_file(&self.1));
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processes that fill the queue of the socket as fast as they can take only a small share of the
/// port's time, and a peer that may attach is admitted.
#[test]
fn a_flood_of_another_user_costs_little_and_keeps_no_peer_out() {
    if !rustix::process::geteuid().is_root() {
        return not_run("only root can start a process of another user");
    }
    let here = address();
    let mut port = Port::open(here, &abstract_place(), &RegionSet::new(1)).unwrap();
    let mut inbox = Inbox::default();
    let _others = [Other::flooding(here)];
    let full = Instant::now();
    while rustix::net::connect(nonblocking(), &name(here)) != Err(rustix::io::Errno::AGAIN) {
        assert!(full.elapsed() < DEADLINE, "the queue is never full");
    }
    let (mut longest, mut looked, mut calls) = (Duration::ZERO, Duration::ZERO, 0u32);
    let before = thread_time();
    let started = Instant::now();
    let mut peer = Peer::connect(here, &abstract_place()).unwrap();
    assert!(!peer.is_connected(), "the queue is full, so the peer must retry");
    while started.elapsed() < Duration::from_secs(1) || !peer.is_ready() {
        let began = thread_time();
        port.progress(&mut inbox);
        let took = thread_time().saturating_sub(began);
        (longest, calls) = (longest.max(took), calls + 1);
        if took > Duration::from_micros(5) {
            looked += took;
        }
        peer.tend().unwrap();
        assert!(started.elapsed() < DEADLINE, "the peer is not admitted: {:?}", peer.error());
    }
    let all = thread_time().saturating_sub(before);
    let _ = writeln!(
        io::stderr(),
        "{calls} calls; longest {longest:?}, {looked:?} of {all:?} in calls over 5 us (CPU time of the thread)"
    );
    // The limits of the design, with slack for a busy machine. Without them it would be a second
    // and 80 %.
    assert!(longest < Duration::from_millis(20), "{longest:?}");
    // In emulation, a call that finds nothing takes 5 us, too.
    assert!(cfg!(barewire_emulated) || looked < all / 4, "{looked:?} of {all:?}");
}

fn nonblocking() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// A connection without a greeting is closed, and its number is reused.
#[test]
fn connections_without_a_greeting_are_closed() {
    run_child("newcomers", |_| ());
}

/// Runs in its own process, because it counts file descriptors.
fn wait_for_newcomers_to_leave() {
    let here = address();
    let mut port = Port::open(here, &abstract_place(), &RegionSet::new(1)).unwrap();
    let mut inbox = Inbox::default();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    let silent: Vec<OwnedFd> = (0..200).map(|_| socket()).collect();
    for socket in &silent {
        rustix::net::connect(socket, &name(here)).unwrap();
    }
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(1) {
        port.progress(&mut inbox);
        assert!(
            descriptors() <= before + silent.len() + 80,
            "too many connections without a greeting"
        );
    }
    while descriptors() > before + silent.len() {
        port.progress(&mut inbox);
        assert!(started.elapsed() < DEADLINE, "connections without a greeting were not closed");
    }
    let mut good = Peer::connect(here, &abstract_place()).unwrap();
    while !good.is_ready() {
        port.progress(&mut inbox);
        good.tend().unwrap();
        assert!(started.elapsed() < DEADLINE);
    }
}

/// A sender writes another sender's number into the FIFO with an invalid message. No connection is
/// ended.
#[test]
fn a_forged_sender_number_in_the_fifo_ends_no_connection() {
    let here = address();
    let mut port = Port::open(here, &abstract_place(), &RegionSet::new(1)).unwrap();
    let mut inbox = Inbox::default();
    let mut good = Peer::connect(here, &abstract_place()).unwrap();
    let started = Instant::now();
    while !good.is_ready() {
        port.progress(&mut inbox);
        good.tend().unwrap();
        assert!(started.elapsed() < DEADLINE);
    }
    let link = socket();
    rustix::net::connect(&link, &name(here)).unwrap();
    send(&link, &message(1, &[SECRET, 0]), &[]);
    let (_, descriptors) = await_response(&mut port, &mut inbox, &link);
    // Lines of the inbox: wake flag, hint, slots. The words are filled slots of the first lap, of
    // sender 1, with tags that are invalid in the FIFO, one of them the announcement of a ring.
    for (slot, tag) in [(0u64, 63u64), (1, 64), (2, 65), (3, 200)] {
        let word = 2 | tag << 32 | 1 << 48;
        rustix::io::pwrite(&descriptors[0], &word.to_ne_bytes(), (2 + slot) * 64).unwrap();
    }
    rustix::io::pwrite(&descriptors[0], &4u64.to_ne_bytes(), 64).unwrap();
    settle(&mut port, &mut inbox);
    assert_eq!(inbox.broken.len(), 4, "{:?}", inbox.broken);
    assert!(inbox.broken.iter().all(|(process, _)| *process == 0), "{:?}", inbox.broken);
    let before = inbox.came;
    let mut sent = 0;
    while inbox.came < before + 1000 {
        sent += u64::from(sent < 1000 && good.send(1, 0, &[]).is_ok());
        port.progress(&mut inbox);
        assert!(good.tend().is_ok(), "{:?}", good.error());
        assert!(started.elapsed() < DEADLINE);
    }
}

fn listen(directory: &str) {
    let config = PortConfig { place: Place::Directory(directory.into()), ..PortConfig::default() };
    let _port = Port::open(address(), &config, &RegionSet::new(1)).unwrap();
    println!("listening");
    std::thread::sleep(DEADLINE);
}

/// The next port in a directory removes the socket that a killed process left there, and keeps
/// those of running processes.
#[test]
fn abandoned_sockets_are_removed() {
    let directory = std::env::temp_dir().join(format!("barewire-swept-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let config = PortConfig { place: Place::Directory(directory.clone()), ..PortConfig::default() };
    let living = Port::open(address(), &config, &RegionSet::new(1)).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "strangers::other_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("listen {}", directory.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let names = || {
        let entries = std::fs::read_dir(&directory).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let started = Instant::now();
    while names().len() < 2 {
        assert!(started.elapsed() < DEADLINE);
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(
        names().len(),
        2,
        "the socket of a killed process must remain until the next port opens"
    );
    std::fs::write(directory.join("barewire-notes"), "not a socket").unwrap();
    // Recent sockets are not removed, so make them old.
    let old = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    for path in names() {
        rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty())
            .unwrap();
    }
    let next = Port::open(address(), &config, &RegionSet::new(1)).unwrap();
    let mut peer =
        Peer::connect(living.address(), &config).expect("the socket of a live port was removed");
    let (mut port, mut inbox) = (living, Inbox::default());
    while !peer.is_ready() {
        port.progress(&mut inbox);
        peer.tend().unwrap();
        assert!(started.elapsed() < DEADLINE);
    }
    assert_eq!(names().len(), 3, "{:?}", names());
    drop((port, next));
    assert_eq!(names(), [directory.join("barewire-notes")]);
    std::fs::remove_dir_all(&directory).unwrap();
}
