//! Batches of datagrams: one system call for several.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use socket2::{SockAddr, SockAddrStorage, Socket};

use super::{MAX_FRAME, ROCE_PORT};

/// Datagrams in a batch.
const BATCH: usize = 32;
/// Words of ancillary data: room for the traffic class.
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
        let size = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the descriptor is open while `socket` lives; the option is an int of the given
        // size.
        unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size)
        };
    }
}

/// A received datagram.
#[derive(Debug)]
struct Arrived {
    frame: Vec<u8>,
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
    /// Swaps the next datagram into `frame`; returns its source and traffic class.
    pub(super) fn receive(
        &mut self,
        socket: &Socket,
        frame: &mut Vec<u8>,
    ) -> Option<(SocketAddr, u8)> {
        if self.arrived.is_empty() {
            self.fill(socket.as_raw_fd());
        }
        let Arrived { frame: mut next, source, class } = self.arrived.pop()?;
        std::mem::swap(frame, &mut next);
        self.spare.push(next);
        Some((source, class))
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
            buffer.reserve(MAX_FRAME);
            parts[at] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: MAX_FRAME };
            header.msg_hdr.msg_iov = &raw mut parts[at];
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = (&raw mut names[at]).cast();
            header.msg_hdr.msg_namelen = size_of::<SockAddrStorage>() as libc::socklen_t;
            header.msg_hdr.msg_control = (&raw mut controls[at]).cast();
            header.msg_hdr.msg_controllen = size_of_val(&controls[at]);
        }
        let count = loop {
            // SAFETY: each header refers to a buffer of MAX_FRAME bytes, an address and room for
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
            let mut frame = std::mem::take(&mut self.buffers[at]);
            // SAFETY: the kernel initialised this many bytes of the buffer, at most its MAX_FRAME.
            unsafe { frame.set_len((header.msg_len as usize).min(MAX_FRAME)) };
            // SAFETY: the kernel wrote an address of this length.
            let source = unsafe { SockAddr::new(name, header.msg_hdr.msg_namelen) };
            let Some(source) = source.as_socket() else { continue };
            let class = traffic_class(&header.msg_hdr);
            self.arrived.push(Arrived { frame, source, class });
        }
    }
}

/// Returns the traffic class from the ancillary data of a received message; 0 if there is none.
fn traffic_class(header: &libc::msghdr) -> u8 {
    // SAFETY: the kernel filled in the header, and its ancillary data is still in place; every
    // message is read within its bounds.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            let data = libc::CMSG_DATA(message);
            match (found.cmsg_level, found.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) => return data.read(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    return data.cast::<libc::c_int>().read_unaligned() as u8;
                }
                _ => message = libc::CMSG_NXTHDR(header, message),
            }
        }
    }
    0
}

/// Ancillary data with the traffic class of a sent datagram: one message, laid out as `CMSG_SPACE`
/// and `CMSG_LEN` say on Linux, in words.
#[derive(Debug)]
#[repr(C)]
struct Class {
    header: libc::cmsghdr,
    value: libc::c_int,
    padding: libc::c_int,
}

impl Class {
    fn new(to: IpAddr, class: u8) -> Self {
        // SAFETY: all zeros is a valid header.
        let mut header: libc::cmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.cmsg_len = size_of::<libc::cmsghdr>() + size_of::<libc::c_int>();
        (header.cmsg_level, header.cmsg_type) = if to.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        };
        Self { header, value: libc::c_int::from(class & !ECN) | ECN_CAPABLE, padding: 0 }
    }
}

/// Datagrams to be sent together.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Receivers, frames, and the ancillary data of those with a traffic class.
    waiting: Vec<(SockAddr, Vec<u8>, Option<Class>)>,
    spare: Vec<Vec<u8>>,
}

impl Outbox {
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
        let class = (class != 0).then(|| Class::new(to, class));
        self.waiting.push((SocketAddr::new(to, ROCE_PORT).into(), buffer, class));
        if self.waiting.len() < BATCH { 0 } else { self.flush(socket) }
    }

    /// Sends the batch. Returns the number of datagrams that could not be sent.
    pub(super) fn flush(&mut self, socket: &Socket) -> u64 {
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: all zeros is a valid header without buffers.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        for ((header, part), (to, frame, class)) in
            headers.iter_mut().zip(&mut parts).zip(&self.waiting)
        {
            // The kernel only reads these buffers.
            *part =
                libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = to.len();
            if let Some(class) = class {
                header.msg_hdr.msg_control = (&raw const *class).cast_mut().cast();
                header.msg_hdr.msg_controllen = size_of::<Class>();
            }
        }
        let (mut done, mut failures) = (0, 0);
        let count = self.waiting.len().min(BATCH);
        while done < count {
            let rest = &mut headers[done..count];
            // SAFETY: the given number of headers, each with a frame, an address and ancillary data
            // that `self` owns and the kernel only reads.
            let sent = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            if sent > 0 {
                done += sent as usize;
            } else if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                // The first of them cannot be sent; the next may be.
                (done, failures) = (done + 1, failures + 1);
            }
        }
        self.spare.extend(self.waiting.drain(..).map(|(_, frame, _)| frame));
        failures
    }
}
