//! Batches of datagrams: one system call for several, and one buffer of the kernel for those of one
//! length to one receiver (segmentation offload, udp(7), `UDP_SEGMENT` and `UDP_GRO`).

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use socket2::{SockAddr, SockAddrStorage, Socket};

use super::{MAX_FRAME, ROCE_PORT, option};

/// Datagrams in a batch.
const BATCH: usize = 32;
/// Bytes of the longest buffer of the kernel.
const LONGEST: usize = 1 << 16;
/// Maximum bytes of datagrams that are sent as one buffer: the longest payload of UDP over IPv4.
const MOST_BYTES: usize = 65_507;
/// Words of ancillary data: room for the traffic class and the length of segments.
const CONTROL: usize = 8;
/// The ECN bits of the traffic class (RFC 3168), and their values.
pub(super) const ECN: u8 = 3;
pub(super) const CONGESTION_EXPERIENCED: u8 = 3;
const ECN_CAPABLE: libc::c_int = 2;

/// Makes the kernel report each datagram's traffic class, and set ECN on sent ones. The device
/// works without either.
pub(super) fn use_congestion_bits(socket: &Socket, address: IpAddr) {
    let (level, options) = if address.is_ipv4() {
        (libc::IPPROTO_IP, [(libc::IP_RECVTOS, 1), (libc::IP_TOS, ECN_CAPABLE)])
    } else {
        (libc::IPPROTO_IPV6, [(libc::IPV6_RECVTCLASS, 1), (libc::IPV6_TCLASS, ECN_CAPABLE)])
    };
    for (option, value) in options {
        let _ = option::set(socket, level, option, value);
    }
}

/// Makes the kernel deliver segments together, and returns whether it sends them so.
pub(super) fn use_segments(socket: &Socket) -> bool {
    let set = |option, value| option::set(socket, libc::SOL_UDP, option, value).is_ok();
    // No segments, unless a datagram's ancillary data says otherwise.
    set(libc::UDP_GRO, 1) && set(libc::UDP_SEGMENT, 0)
}

/// A received buffer of datagrams.
#[derive(Debug)]
struct Arrived {
    bytes: Vec<u8>,
    /// The bytes that were returned.
    taken: usize,
    /// Bytes of each datagram but the last, which may be shorter.
    segment: usize,
    source: SocketAddr,
    class: u8,
}

/// Received datagrams that were not returned yet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// In reverse order.
    arrived: Vec<Arrived>,
    buffers: [Vec<u8>; BATCH],
    spare: Vec<Vec<u8>>,
}

impl Inbox {
    /// Returns whether all datagrams that the kernel has delivered were returned.
    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Copies the next datagram, at most [`MAX_FRAME`] bytes, to `frame`; returns its source and
    /// traffic class.
    pub(super) fn receive(
        &mut self,
        socket: &Socket,
        frame: &mut Vec<u8>,
    ) -> Option<(SocketAddr, u8)> {
        if self.arrived.is_empty() {
            self.fill(socket.as_raw_fd());
        }
        let next = self.arrived.last_mut()?;
        let datagram = &next.bytes[next.taken..];
        let datagram = &datagram[..datagram.len().min(next.segment)];
        frame.clear();
        frame.extend_from_slice(&datagram[..datagram.len().min(MAX_FRAME)]);
        next.taken += datagram.len();
        let found = (next.source, next.class);
        if next.taken == next.bytes.len() {
            self.spare.extend(self.arrived.pop().map(|read| read.bytes));
        }
        Some(found)
    }

    /// Receives up to a batch from the kernel.
    fn fill(&mut self, descriptor: RawFd) {
        let mut names: [SockAddrStorage; BATCH] =
            std::array::from_fn(|_| SockAddrStorage::zeroed());
        let mut controls = [[0_u64; CONTROL]; BATCH];
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: all zeros is a valid header without buffers.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        for (at, header) in headers.iter_mut().enumerate() {
            let buffer = &mut self.buffers[at];
            if buffer.capacity() == 0 {
                *buffer = self.spare.pop().unwrap_or_default();
            }
            buffer.clear();
            buffer.reserve(LONGEST);
            parts[at] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: LONGEST };
            header.msg_hdr.msg_iov = &raw mut parts[at];
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = (&raw mut names[at]).cast();
            header.msg_hdr.msg_namelen = size_of::<SockAddrStorage>() as libc::socklen_t;
            header.msg_hdr.msg_control = (&raw mut controls[at]).cast();
            header.msg_hdr.msg_controllen = size_of_val(&controls[at]);
        }
        let count = loop {
            // SAFETY: each header refers to a buffer of LONGEST bytes, an address and room for
            // ancillary data, all of which outlive the call.
            let count = unsafe {
                libc::recvmmsg(
                    descriptor,
                    headers.as_mut_ptr(),
                    BATCH as libc::c_uint,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                )
            };
            if count >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                // No datagram, or an error of an earlier send, which its retries handle.
                break count.max(0) as usize;
            }
        };
        for (at, name) in names.into_iter().enumerate().take(count).rev() {
            let header = &headers[at];
            let mut bytes = std::mem::take(&mut self.buffers[at]);
            // SAFETY: the kernel initialised this many bytes of the buffer, at most its LONGEST.
            unsafe { bytes.set_len((header.msg_len as usize).min(LONGEST)) };
            // SAFETY: the kernel wrote an address of this length.
            let source = unsafe { SockAddr::new(name, header.msg_hdr.msg_namelen) };
            let Some(source) = source.as_socket() else { continue };
            let Ancillary { class, segment } = ancillary(&header.msg_hdr);
            let segment = segment.unwrap_or(bytes.len());
            self.arrived.push(Arrived { bytes, taken: 0, segment, source, class });
        }
    }
}

/// What the kernel says about a received buffer.
#[derive(Debug, Default)]
struct Ancillary {
    /// The traffic class; 0 if there is none.
    class: u8,
    /// Bytes of each segment; never zero.
    segment: Option<usize>,
}

fn ancillary(header: &libc::msghdr) -> Ancillary {
    let mut read = Ancillary::default();
    // SAFETY: the kernel filled in the header, and its ancillary data is still in place; every
    // message is read within its bounds.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            let data = libc::CMSG_DATA(message);
            match (found.cmsg_level, found.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) => read.class = data.read(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    read.class = data.cast::<libc::c_int>().read_unaligned() as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let bytes = data.cast::<libc::c_int>().read_unaligned();
                    read.segment = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0);
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    read
}

/// Bytes of the value of a message of ancillary data, with those that fill it up.
const VALUE: usize = 8;

/// A message of ancillary data, laid out as `CMSG_SPACE` and `CMSG_LEN` say on Linux for values of
/// at most eight bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Message {
    header: libc::cmsghdr,
    value: [u8; VALUE],
}

impl Message {
    fn new<const N: usize>(level: libc::c_int, kind: libc::c_int, value: [u8; N]) -> Self {
        const { assert!(N <= VALUE) };
        // SAFETY: all zeros is a valid header.
        let mut header: libc::cmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.cmsg_len = size_of::<libc::cmsghdr>() + N;
        (header.cmsg_level, header.cmsg_type) = (level, kind);
        // The kernel copies the bytes behind the value, too.
        let mut filled = [0; VALUE];
        filled[..N].copy_from_slice(&value);
        Self { header, value: filled }
    }
}

/// Ancillary data of sent datagrams.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Control {
    /// The length of the segments.
    segment: Message,
    /// The traffic class.
    class: Message,
}

const _: () = assert!(size_of::<Control>() == 2 * 24);

impl Control {
    /// For segments of `length` bytes.
    fn new(to: &SockAddr, class: u8, length: usize) -> Self {
        let (level, kind) = if to.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        };
        let class = libc::c_int::from(class & !ECN) | ECN_CAPABLE;
        Self {
            segment: Message::new(libc::SOL_UDP, libc::UDP_SEGMENT, (length as u16).to_ne_bytes()),
            class: Message::new(level, kind, class.to_ne_bytes()),
        }
    }
}

/// A datagram to be sent.
#[derive(Debug)]
struct Waiting {
    to: SockAddr,
    class: u8,
    frame: Vec<u8>,
}

/// Datagrams to be sent together.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Vec<Waiting>,
    spare: Vec<Vec<u8>>,
    /// Whether datagrams of one length are sent as segments of one buffer.
    segments: bool,
}

impl Outbox {
    /// Creates an outbox that sends datagrams as segments, if `segments` is set.
    pub(super) fn new(segments: bool) -> Self {
        Self { segments, ..Self::default() }
    }

    /// Adds a datagram of `frame` and `tag` with a traffic class. Sends the batch if it is full, and
    /// returns the number of datagrams that could not be sent.
    pub(super) fn send(
        &mut self,
        socket: &Socket,
        (to, class): (IpAddr, u8),
        frame: &[u8],
        tag: &[u8],
    ) -> u64 {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        buffer.extend_from_slice(tag);
        let to = SocketAddr::new(to, ROCE_PORT).into();
        self.waiting.push(Waiting { to, class, frame: buffer });
        if self.waiting.len() < BATCH { 0 } else { self.flush(socket) }
    }

    /// Returns how many of the waiting datagrams from `first` on are sent as segments of one
    /// buffer.
    fn group(&self, first: usize) -> usize {
        let waiting = &self.waiting[first..];
        let [head, rest @ ..] = waiting else { return 0 };
        let (mut count, mut bytes, mut last) = (1, head.frame.len(), head.frame.len());
        for next in rest {
            let length = next.frame.len();
            bytes += length;
            // Only the last one may be shorter.
            let fits = last == head.frame.len() && (1..=last).contains(&length);
            if !self.segments || !fits || bytes > MOST_BYTES {
                break;
            }
            if next.to != head.to || next.class != head.class {
                break;
            }
            (count, last) = (count + 1, length);
        }
        count
    }

    /// Sends the batch. Returns the number of datagrams that could not be sent.
    pub(super) fn flush(&mut self, socket: &Socket) -> u64 {
        let (mut done, mut failures) = (0, 0);
        while done < self.waiting.len() {
            match self.send_from(socket, done) {
                Ok(sent) => done += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The first of them cannot be sent; the next may be.
                Err(error) => {
                    let group = self.group(done);
                    if group > 1 && cannot_segment(&error) {
                        self.segments = false;
                    } else {
                        (done, failures) = (done + group, failures + group as u64);
                    }
                }
            }
        }
        self.spare.extend(self.waiting.drain(..).map(|waiting| waiting.frame));
        failures
    }

    /// Sends up to a batch of the waiting datagrams from `first` on. Returns how many were sent;
    /// the error is that of the first group.
    fn send_from(&self, socket: &Socket, first: usize) -> io::Result<usize> {
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: all zeros is a valid header without buffers.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; BATCH];
        let waiting = &self.waiting[first..self.waiting.len().min(first + BATCH)];
        for (part, Waiting { frame, .. }) in parts.iter_mut().zip(waiting) {
            // The kernel only reads these buffers.
            *part =
                libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        }
        let (mut groups, mut at) = (0, 0);
        while let Some(Waiting { to, class, frame }) = waiting.get(at) {
            let count = self.group(first + at).min(waiting.len() - at);
            let header = &mut headers[groups].msg_hdr;
            header.msg_iov = &raw mut parts[at];
            header.msg_iovlen = count;
            header.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_namelen = to.len();
            let control = controls[groups].write(Control::new(to, *class, frame.len()));
            let (whole, half) = (size_of::<Control>(), size_of::<Control>() / 2);
            (header.msg_control, header.msg_controllen) = match (count > 1, *class != 0) {
                (true, true) => ((&raw mut *control).cast(), whole),
                (true, false) => ((&raw mut *control).cast(), half),
                (false, true) => ((&raw mut control.class).cast(), half),
                (false, false) => (std::ptr::null_mut(), 0),
            };
            (groups, at) = (groups + 1, at + count);
        }
        // SAFETY: the given number of headers, each with frames and an address that `self` owns and
        // ancillary data above, all of which the kernel only reads.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                groups as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(headers[..sent as usize].iter().map(|header| header.msg_hdr.msg_iovlen).sum())
    }
}

/// Returns whether an interface, or a route, sends no segments: it has no checksum offload, or
/// encrypts.
fn cannot_segment(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP))
}
