//! Frames to devices of the same user and key on this machine, through memory that both processes
//! share.
//!
//! A device asks a loopback address for its port, over UDP under the key, with its first frame to
//! it. Frames go over UDP until the other device has accepted the connection. The first message
//! through shared memory says that frames over UDP were sent before, so that none overtakes
//! another.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_shared_bytes::SharedBytes;
use barewire_shm::{
    BUFFER, BulkReceiver, Deliver, LinkError, MAX_BUFFERS, MESSAGE_WORDS, Peer, Place, Port,
    PortAddress, PortConfig, RegionSet, SendError, Users, Watcher,
};

use super::MAX_FRAME;
use super::epoll::Epoll;
use crate::address::gid;

/// The first bytes of what devices say to each other over UDP beside frames. No base transport
/// header begins with them: there is no such opcode.
const MARK: [u8; 4] = *b"bwn\x01";
const ASK: u8 = 0;
/// It is followed by the number and the secret of the port.
const PORT: u8 = 1;
/// Asks a device for its port.
pub(super) const QUESTION: [u8; 5] = [MARK[0], MARK[1], MARK[2], MARK[3], ASK];

/// The identifiers of messages through shared memory.
const FRAME: u8 = 0;
const SWITCH: u8 = 1;
/// Bytes behind each frame: the address of its sender as one of IPv6, and the traffic class.
const TRAILER: usize = 17;

/// Frames that wait for the receiver of a link. Further ones are lost.
const MOST_WAITING: usize = 1024;
/// Devices that are reached through shared memory. Further ones are reached over UDP.
const MOST_LINKS: usize = 256;
/// How often a device that did not respond is asked again, and links are checked, in nanoseconds.
const ASK_AGAIN: u64 = 100_000_000;
const CHECK: u64 = 1_000_000;
/// When frames that wait are tried again; [`CHECK`] once some have waited for [`PATIENT`].
const RETRY: u64 = 20_000;
const PATIENT: u64 = 5_000_000;
/// How long a device may take to accept a connection.
const ACCEPT: u64 = 1_000_000_000;

/// A frame with its source and traffic class.
type Arrived = (IpAddr, u8, Vec<u8>);

/// The receiving side.
#[derive(Debug, Default)]
struct Inbox {
    scratch: [u64; MESSAGE_WORDS],
    arrived: VecDeque<Arrived>,
    spare: Vec<Vec<u8>>,
    /// A sender has changed from UDP to shared memory.
    switched: bool,
}

impl Deliver for Inbox {
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.scratch
    }

    fn wants_more(&self) -> bool {
        !self.switched
    }

    fn short(&mut self, id: u8, _length: usize) {
        self.switched |= id == SWITCH;
    }

    fn buffered(
        &mut self,
        id: u8,
        buffers: &Rc<BulkReceiver>,
        number: u8,
        data: NonNull<u8>,
        length: usize,
    ) {
        if id == FRAME && (TRAILER..=MAX_FRAME + TRAILER).contains(&length) {
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.resize(length, 0);
            // SAFETY: the buffer has `BUFFER` bytes, at least `length`, and is mapped while
            // `buffers` lives. A process that writes there meanwhile changes only which bytes are
            // read.
            unsafe { SharedBytes::new(data, BUFFER).read(0, &mut frame) };
            let (class, source) = (frame[length - 1], &frame[length - TRAILER..length - 1]);
            let source = Ipv6Addr::from(<[u8; 16]>::try_from(source).unwrap_or_default());
            frame.truncate(length - TRAILER);
            self.arrived.push_back((IpAddr::V6(source).to_canonical(), class, frame));
        }
        buffers.give(number);
    }

    // The sender notices it, and asks again.
    fn broken(&mut self, _process: i32, _why: LinkError) {}

    fn peer(&mut self, _name: u32) {}
}

/// The way to a device.
#[derive(Debug)]
enum Link {
    /// The device was asked for its port at this time.
    Asked(u64),
    Connected(Box<Connected>),
}

impl Link {
    /// Returns whether the device did not respond, and may be asked again at time `now`.
    fn may_be_asked(&self, now: u64) -> bool {
        matches!(self, Self::Asked(at) if now.saturating_sub(*at) >= ASK_AGAIN)
    }
}

/// A connection to the port of a device.
#[derive(Debug)]
struct Connected {
    peer: Peer,
    /// When it was connected to.
    since: u64,
    /// Frames go through shared memory.
    open: bool,
    waiting: VecDeque<(u8, Vec<u8>)>,
}

/// The port of a device, and its ways to others.
#[derive(Debug)]
pub(super) struct Near {
    address: IpAddr,
    port: Port,
    watcher: Watcher,
    inbox: Inbox,
    links: HashMap<IpAddr, Link>,
    /// Links whose frames go through shared memory.
    open: usize,
    /// Readable when the UDP socket or the port is.
    events: Epoll,
    now: u64,
    next_check: u64,
    /// Whether there are links that connect, or frames that wait, and since when.
    pending: bool,
    pending_since: u64,
    failures: u64,
}

// SAFETY: only the `Rc`s in `port` and `watcher` keep this type from being `Send`. All of the `Rc`s
// to one value are in these two fields: no method returns or clones an `Rc`, and `Inbox` does not
// keep the one that it is passed. So they move to another thread together, and never count on two
// threads at once. The pointers are to mapped memory, which belongs to no thread.
unsafe impl Send for Near {}

/// What is to be done with a frame.
pub(super) enum Way {
    /// It was taken.
    Taken,
    /// It goes over UDP.
    Udp,
    /// It goes over UDP, behind [`QUESTION`].
    Ask,
}

/// What a device said over UDP.
pub(super) enum Heard {
    /// A frame.
    Frame,
    /// Nothing that needs a reply.
    Nothing,
    /// A question with this reply.
    Question(Vec<u8>),
}

fn config() -> PortConfig {
    PortConfig {
        fifo_slots: 256,
        ring_slots: 128,
        ring_after: 0,
        buffers: MAX_BUFFERS,
        users: Users::Same,
        // Of the network namespace, as are loopback addresses.
        place: Place::Abstract,
        direct: true,
        huge_pages: false,
    }
}

impl Near {
    /// Opens the port of the device at `address`, whose socket is `socket`.
    ///
    /// # Errors
    /// The kernel's error: there are no descriptors, or membarrier(2) is refused.
    pub(super) fn open(address: IpAddr, socket: BorrowedFd<'_>) -> io::Result<Self> {
        let regions = RegionSet::new(0);
        let port = Port::open(PortAddress::random()?, &config(), &regions);
        let port = port.map_err(io::Error::other)?;
        let watcher = port.watcher();
        watcher.arm()?;
        let events = Epoll::new(&[socket, port.as_fd()])?;
        Ok(Self {
            address,
            port,
            watcher,
            inbox: Inbox::default(),
            links: HashMap::new(),
            open: 0,
            events,
            now: 0,
            next_check: 0,
            pending: false,
            pending_since: 0,
            failures: 0,
        })
    }

    /// Takes what another device said over UDP, if `message` is no frame.
    pub(super) fn hear(&mut self, from: IpAddr, message: &[u8]) -> Heard {
        match message.strip_prefix(&MARK) {
            None => Heard::Frame,
            Some([ASK]) if from.is_loopback() => Heard::Question(self.introduction()),
            Some([PORT, port @ ..]) => {
                self.connect(from, port);
                Heard::Nothing
            }
            Some(_) => Heard::Nothing,
        }
    }

    fn introduction(&self) -> Vec<u8> {
        let PortAddress { number, secret } = self.port.address();
        [&MARK[..], &[PORT], &number.to_le_bytes(), &secret.to_le_bytes()].concat()
    }

    /// Connects to the port of a device that was asked for it.
    fn connect(&mut self, to: IpAddr, port: &[u8]) {
        let Some((number, secret)) = port.split_first_chunk() else { return };
        let Ok(secret) = secret.try_into() else { return };
        if !matches!(self.links.get(&to), Some(Link::Asked(_))) {
            return;
        }
        let address = PortAddress {
            number: u64::from_le_bytes(*number),
            secret: u128::from_le_bytes(secret),
        };
        // Without a connection, the device is asked again later.
        if let Ok(peer) = Peer::connect(address, &config()) {
            let connected =
                Connected { peer, since: self.now, open: false, waiting: VecDeque::new() };
            self.links.insert(to, Link::Connected(Box::new(connected)));
            self.pending = true;
        }
    }

    /// Sends a frame, or says how it is to be sent.
    pub(super) fn send(&mut self, to: IpAddr, class: u8, frame: &[u8]) -> Way {
        if !to.is_loopback() {
            return Way::Udp;
        }
        let now = self.now;
        if self.links.len() >= MOST_LINKS && !self.links.contains_key(&to) {
            // Devices that have ended do not respond.
            self.links.retain(|_, link| !link.may_be_asked(now));
            if self.links.len() >= MOST_LINKS {
                return Way::Udp;
            }
        }
        let link = match self.links.get_mut(&to) {
            Some(Link::Connected(link)) => link,
            Some(link) if !link.may_be_asked(now) => return Way::Udp,
            Some(Link::Asked(_)) | None => {
                self.links.insert(to, Link::Asked(now));
                return Way::Ask;
            }
        };
        if !link.open {
            return Way::Udp;
        }
        let sent = if link.waiting.is_empty() {
            link.send(self.address, class, frame)
        } else {
            Err(SendError::Full)
        };
        match sent {
            Ok(()) => {}
            Err(SendError::Full) if link.waiting.len() < MOST_WAITING => {
                link.waiting.push_back((class, frame.to_vec()));
                self.pending = true;
            }
            Err(SendError::Full) => self.failures += 1,
            Err(SendError::Lost) => {
                self.links.insert(to, Link::Asked(now));
                self.open -= 1;
                return Way::Udp;
            }
        }
        Way::Taken
    }

    /// Starts a pass at time `now`.
    pub(super) fn tick(&mut self, now: u64) {
        self.now = now;
        let check = now >= self.next_check;
        if check {
            self.next_check = now + CHECK;
        }
        if !check && !self.pending {
            return;
        }
        if !mem::take(&mut self.pending) {
            self.pending_since = now;
        }
        let Self { links, open, pending, address, .. } = self;
        for link in links.values_mut() {
            let Link::Connected(connected) = link else { continue };
            let tended = if check || !connected.open { connected.peer.tend() } else { Ok(()) };
            let is_late = !connected.open && now.saturating_sub(connected.since) >= ACCEPT;
            if !is_late && tended.and_then(|()| connected.send_waiting(*address)).is_ok() {
                *pending |= !connected.open || !connected.waiting.is_empty();
            } else {
                *open -= usize::from(connected.open);
                *link = Link::Asked(now);
            }
        }
    }

    /// Returns whether links connect, or frames wait.
    pub(super) fn is_pending(&self) -> bool {
        self.pending
    }

    /// Opens links whose other side is ready. All frames over UDP have been sent.
    pub(super) fn open_links(&mut self) {
        for link in self.links.values_mut() {
            let Link::Connected(link) = link else { continue };
            if link.open || !link.peer.is_ready() {
                continue;
            }
            // Full until the other side has buffers.
            if let Ok(number) = link.peer.take_buffer() {
                link.peer.put_back(number);
                link.open = link.peer.send(SWITCH, 0, &[]).is_ok();
                self.open += usize::from(link.open);
            }
        }
    }

    /// Returns when there is work without an event.
    pub(super) fn deadline(&self) -> Option<u64> {
        let waited = self.now.saturating_sub(self.pending_since);
        self.pending.then(|| self.now + if waited < PATIENT { RETRY } else { CHECK })
    }

    /// Receives the next frame, its source and traffic class. Returns `None` after a switch, until
    /// [`Self::switch`].
    pub(super) fn receive(&mut self, frame: &mut Vec<u8>) -> Option<(IpAddr, u8)> {
        if self.inbox.arrived.is_empty() && !self.inbox.switched {
            self.port.progress(&mut self.inbox);
        }
        let (source, class, next) = self.inbox.arrived.pop_front()?;
        self.inbox.spare.push(mem::replace(frame, next));
        Some((source, class))
    }

    /// Returns whether all devices that this one sends to are reached through shared memory, and no
    /// frame over UDP has to be received first.
    pub(super) fn suffices(&self) -> bool {
        self.open != 0 && self.open == self.links.len() && !self.inbox.switched
    }

    /// Says that no frame over UDP is left that was sent before a switch.
    pub(super) fn switch(&mut self) {
        self.inbox.switched = false;
    }

    /// Prepares for a sleep. Returns false if frames have arrived.
    pub(super) fn rest(&mut self) -> bool {
        if matches!(self.watcher.arm(), Ok(false)) {
            self.port.progress(&mut self.inbox);
            if matches!(self.watcher.arm(), Ok(false)) {
                return false;
            }
        }
        self.inbox.arrived.is_empty() && !self.inbox.switched
    }

    /// Returns a descriptor that is readable when the UDP socket or the port is.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    #[cfg(test)]
    pub(super) fn is_open(&self, to: IpAddr) -> bool {
        matches!(self.links.get(&to), Some(Link::Connected(link)) if link.open)
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures
    }
}

impl Connected {
    fn send(&mut self, from: IpAddr, class: u8, frame: &[u8]) -> Result<(), SendError> {
        let length = frame.len() + TRAILER;
        assert!(length <= BUFFER, "a frame of {} bytes", frame.len());
        let number = self.peer.take_buffer()?;
        let buffer = SharedBytes::new(self.peer.buffer(number), BUFFER);
        // SAFETY: the buffer has `BUFFER` bytes, which was compared above, and is mapped while the
        // connection lives.
        unsafe {
            buffer.write(0, frame);
            buffer.write(frame.len(), &gid(from));
            buffer.write(length - 1, &[class]);
        }
        self.peer.send_buffer(FRAME, number, length as u16).inspect_err(|_| {
            self.peer.put_back(number);
        })
    }

    /// Sends frames that wait.
    fn send_waiting(&mut self, from: IpAddr) -> Result<(), SendError> {
        while let Some((class, frame)) = self.waiting.pop_front() {
            match self.send(from, class, &frame) {
                Ok(()) => {}
                Err(SendError::Full) => {
                    self.waiting.push_front((class, frame));
                    return Ok(());
                }
                Err(SendError::Lost) => return Err(SendError::Lost),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::wire::Wire;
    use crate::wire::udp::Udp;
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    fn device(address: Option<IpAddr>, key: Option<Key>) -> Udp {
        Udp::bind(address, key, true).unwrap()
    }

    /// Two devices of one key.
    fn pair() -> (Udp, Udp) {
        let key = Key::random().ok();
        (device(None, key), device(None, key))
    }

    /// A port that no device has.
    fn near() -> Near {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        Near::open([127, 0, 0, 1].into(), socket.as_fd()).unwrap()
    }

    /// A pass of a device: what arrives is appended to `got`.
    fn pass(device: &mut Udp, now: u64, got: &mut Vec<Vec<u8>>) {
        device.tick(now);
        let mut frame = Vec::new();
        while device.receive(&mut frame).is_some() {
            got.push(frame.clone());
        }
        device.flush();
    }

    /// Sends numbered frames from `a` to `b` until one went through shared memory, and checks that
    /// none was lost or overtaken.
    fn meet(a: &mut Udp, b: &mut Udp) {
        let deadline = Instant::now() + Duration::from_mins(1);
        let (mut sent, mut got, mut now) = (Vec::new(), Vec::new(), 0);
        while !a.is_near(b.address()) {
            assert!(Instant::now() < deadline, "no connection after {} frames", sent.len());
            now += 1_000_000;
            for _ in 0..3 {
                sent.push((sent.len() as u32).to_be_bytes().repeat(8));
                a.send(b.address(), &sent[sent.len() - 1]);
            }
            pass(a, now, &mut Vec::new());
            pass(b, now, &mut got);
            std::thread::yield_now();
        }
        // The last over UDP, and the first through shared memory, may wait together.
        for class in 1..40_u8 {
            a.set_class(class << 2);
            sent.push(vec![class; 4000]);
            a.send(b.address(), &sent[sent.len() - 1]);
        }
        a.flush();
        while got.len() < sent.len() {
            assert!(Instant::now() < deadline, "{} of {} frames came", got.len(), sent.len());
            pass(b, now, &mut got);
        }
        assert_eq!(b.class(), 39 << 2);
        assert!(got == sent);
        a.set_class(0);
    }

    #[test]
    fn frames_change_from_udp_to_shared_memory_in_order() {
        let (mut a, mut b) = pair();
        meet(&mut a, &mut b);
        meet(&mut b, &mut a);
    }

    #[test]
    fn frames_wait_for_a_slow_receiver() {
        let (mut a, mut b) = pair();
        meet(&mut a, &mut b);
        let frames: Vec<Vec<u8>> = (0..300_u16).map(|at| at.to_be_bytes().repeat(100)).collect();
        for frame in &frames {
            a.send(b.address(), frame);
        }
        let (mut got, mut now) = (Vec::new(), 0);
        let deadline = Instant::now() + Duration::from_mins(1);
        assert!(a.deadline().is_some());
        while got.len() < frames.len() {
            assert!(Instant::now() < deadline, "{} of {} frames came", got.len(), frames.len());
            now += 100_000;
            pass(&mut b, now, &mut got);
            pass(&mut a, now, &mut Vec::new());
        }
        assert!(got == frames);
        assert!(a.deadline().is_none());
    }

    #[test]
    fn a_device_that_starts_again_is_reached_again() {
        let key = Key::random().ok();
        let (mut a, mut b) = (device(None, key), device(None, key));
        meet(&mut a, &mut b);
        let address = b.address();
        drop(b);
        // While no device has the address, frames to it are lost.
        a.send(address, &[1; 16]);
        pass(&mut a, 10_000_000, &mut Vec::new());
        assert!(!a.is_near(address));
        let mut b = device(Some(address), key);
        meet(&mut a, &mut b);
    }

    #[test]
    fn a_sleeper_is_woken_by_shared_memory() {
        let (mut a, mut b) = pair();
        meet(&mut a, &mut b);
        let deadline = Instant::now() + Duration::from_mins(1);
        while !b.rest() {
            assert!(Instant::now() < deadline);
            pass(&mut b, 0, &mut Vec::new());
        }
        let readable = |device: &Udp, time| {
            let fd = device.descriptor().unwrap();
            let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one live structure.
            unsafe { libc::poll(&raw mut polled, 1, time) == 1 }
        };
        assert!(!readable(&b, 0));
        a.send(b.address(), &[7; 16]);
        a.flush();
        assert!(readable(&b, 60_000));
        let mut got = Vec::new();
        pass(&mut b, 0, &mut got);
        assert_eq!(got, [[7; 16]]);
    }

    #[test]
    fn only_a_device_that_was_asked_is_connected_to() {
        let (mut a, mut b) = pair();
        // Unasked, `b` says where its port is.
        let port = near().introduction();
        b.send(a.address(), &port);
        b.flush();
        let (mut got, deadline) = (Vec::new(), Instant::now() + Duration::from_mins(1));
        // A frame behind it.
        b.send(a.address(), &[1; 16]);
        b.flush();
        while got.is_empty() {
            assert!(Instant::now() < deadline);
            pass(&mut a, 0, &mut got);
        }
        a.tick(10_000_000);
        assert!(!a.is_near(b.address()) && a.deadline().is_none());
    }

    #[test]
    fn devices_that_do_not_respond_leave_room_for_others() {
        let mut near = near();
        let to = |number: usize| IpAddr::from([127, 3, (number / 256) as u8, number as u8]);
        let mut asks = |number, now| {
            near.now = now;
            matches!(near.send(to(number), 0, &[0; 16]), Way::Ask)
        };
        assert!((0..MOST_LINKS).all(|number| asks(number, 0)));
        assert!(!asks(0, ASK_AGAIN - 1) && !asks(MOST_LINKS, ASK_AGAIN - 1));
        assert!(asks(0, ASK_AGAIN) && asks(MOST_LINKS, ASK_AGAIN));
    }

    proptest! {
        #[test]
        fn any_bytes_are_heard_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..40), marked: bool) {
            let mut near = near();
            let to = IpAddr::from([127, 0, 0, 9]);
            let _ = near.send(to, 0, &[0; 16]);
            let message = if marked { [&MARK[..], &bytes].concat() } else { bytes };
            let heard = near.hear(to, &message);
            prop_assert_eq!(matches!(heard, Heard::Frame), !message.starts_with(&MARK));
        }
    }
}
