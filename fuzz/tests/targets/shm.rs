//! Messages and descriptors over a socket of `shm`: from a sender to a port, and from a port to a
//! peer.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_shm::{
    BulkReceiver, Deliver, LinkError, MESSAGE_WORDS, Peer, Place, Port, PortAddress, PortConfig,
    RegionSet,
};
use bolero::check;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use crate::allocation;
use crate::script::{Script, bytes_to};

/// Size of a message over the socket.
const MESSAGE: usize = 64;
/// Memory that the other side may make this one allocate, in addition to mappings of memory that it
/// passes.
const MEMORY: usize = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(30);
const SECRET: u128 = 0x5ec_2e75;

#[derive(Default)]
struct Inbox([u64; MESSAGE_WORDS]);

impl Deliver for Inbox {
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.0
    }

    fn wants_more(&self) -> bool {
        true
    }

    fn short(&mut self, _: u8, length: usize) {
        assert!(length <= size_of_val(&self.0));
    }

    fn buffered(
        &mut self,
        _: u8,
        buffers: &Rc<BulkReceiver>,
        number: u8,
        data: NonNull<u8>,
        length: usize,
    ) {
        if length > 0 {
            // SAFETY: the buffer contains a message of this length until it is released. The sender
            // is this thread, which does not write now.
            unsafe { data.add(length - 1).read_volatile() };
        }
        buffers.give(number);
    }

    fn broken(&mut self, _: i32, why: LinkError) {
        assert!(!why.to_string().is_empty());
    }

    fn peer(&mut self, _: u32) {}
}

fn config() -> PortConfig {
    PortConfig { place: Place::Abstract, ..PortConfig::default() }
}

fn address(offset: u64) -> PortAddress {
    let number = u64::from(std::process::id()) << 32 | 0xf022_0000 | offset;
    PortAddress { number, secret: SECRET }
}

fn name(address: PortAddress) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("barewire-{:016x}", address.number).as_bytes())
        .unwrap()
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// A message of any kind, mostly well-formed.
fn message(script: &mut Script<'_>) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[..7].copy_from_slice(b"bwshm\r\n");
    bytes[7] = 3;
    bytes[8] = script.byte() % 11;
    for number in bytes[16..48].chunks_exact_mut(8) {
        let value = match script.byte() {
            0 => u64::from_be_bytes(script.array()),
            1 => SECRET as u64,
            small => u64::from(small) << (small % 12),
        };
        number.copy_from_slice(&value.to_le_bytes());
    }
    if script.byte().is_multiple_of(4) {
        script.mutate(&mut bytes);
    }
    bytes
}

/// A descriptor of any kind: sealed or unsealed memory, or something else.
fn descriptor(script: &mut Script<'_>) -> OwnedFd {
    let kind = script.byte();
    if kind & 7 == 7 {
        return rustix::pipe::pipe().unwrap().0;
    }
    let file =
        rustix::fs::memfd_create("fuzz", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, u64::from(script.number() % 1024) * 64).unwrap();
    let first = script.array::<16>();
    let _ = rustix::io::pwrite(&file, &first, 0);
    if kind & 7 > 1 {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    }
    file
}

/// Sends any messages with any descriptors.
fn say(script: &mut Script<'_>, link: &OwnedFd) {
    let bytes = message(script);
    let descriptors: Vec<_> = (0..script.byte() % 4).map(|_| descriptor(script)).collect();
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    }
    let length = if script.byte() == 0 { usize::from(script.byte()) % MESSAGE } else { MESSAGE };
    let _ = rustix::net::sendmsg(
        link,
        &[IoSlice::new(&bytes[..length])],
        &mut control,
        SendFlags::NOSIGNAL,
    );
}

#[test]
fn anything_from_a_sender() {
    let here = address(1);
    let regions = RegionSet::new(1);
    let _region = regions.region(4096).unwrap();
    let port = Port::open(here, &config(), &regions).unwrap();
    let mut ends = AssertUnwindSafe((port, Inbox::default()));
    let mut rounds = 0;
    check!().with_generator(bytes_to(400)).for_each(|bytes| {
        let (port, inbox): &mut (Port, Inbox) = &mut ends;
        let mut script = Script::new(bytes);
        let link = socket();
        if rustix::net::connect(&link, &name(here)).is_err() {
            // The backlog is full until the port has accepted the connections.
            port.progress(inbox);
            return;
        }
        let most = allocation::peak(|| {
            while !script.is_over() {
                say(&mut script, &link);
                for _ in 0..script.byte() % 64 {
                    port.progress(inbox);
                }
            }
        });
        assert!(most < MEMORY, "{most} bytes for a sender");
        drop(link);
        rounds += 1;
        // Periodically, a correct peer connects and its messages are received.
        if rounds % 64 == 0 {
            let start = Instant::now();
            let mut peer = Peer::connect(here, &config()).unwrap();
            while !peer.is_ready() {
                port.progress(inbox);
                peer.tend().unwrap();
                assert!(start.elapsed() < DEADLINE, "no connection");
            }
            assert_eq!(peer.send(1, 0, b"8 bytes."), Ok(()));
        }
    });
}

#[test]
fn anything_from_a_port() {
    let there = address(2);
    let listener = socket();
    rustix::net::bind(&listener, &name(there)).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    check!().with_generator(bytes_to(400)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let mut peer = Peer::connect(there, &config()).unwrap();
        let link = rustix::net::accept(&listener).unwrap();
        let most = allocation::peak(|| {
            while !script.is_over() {
                say(&mut script, &link);
                let _ = peer.tend();
                let _ = peer.send(script.byte() % 32, 0, script.bytes(24));
                if let Ok(number) = peer.take_buffer() {
                    let _ = peer.send_buffer(1, number, script.number() % 8192);
                }
                let _ = peer.region(u64::from(script.byte()), u64::from(script.number()));
            }
        });
        assert!(most < MEMORY, "{most} bytes for a port");
        if let Some(error) = peer.error() {
            assert!(!error.to_string().is_empty());
        }
    });
}
