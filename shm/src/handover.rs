//! The hand-over of a segment's descriptor through a unix socket (SCM_RIGHTS, unix(7)).
//!
//! The message is 16 bytes: magic, version, and the size in bytes as 64 bits, little-endian; its descriptor
//! travels with the first of them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::error::HandoverError;
use crate::segment::Segment;

const MAGIC: [u8; 7] = *b"bwshm\r\n";
const VERSION: u8 = 1;
const MESSAGE: usize = 16;

/// Hands the segment to the process at the other end, which takes it with [`receive`]. It stays ours too.
///
/// # Errors
/// [`HandoverError::Socket`] if the peer is gone or the stream's write timeout runs out; the stream is of no
/// further use then, for a part of the message may have gone out.
pub fn send(stream: &UnixStream, segment: &Segment) -> Result<(), HandoverError> {
    let mut message = [0; MESSAGE];
    message[..7].copy_from_slice(&MAGIC);
    message[7] = VERSION;
    message[8..].copy_from_slice(&(segment.size() as u64).to_le_bytes());

    let descriptors = [segment.as_fd()];
    let mut sent = retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // The space was made for it.
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        rustix::net::sendmsg(stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)
    })
    .map_err(socket)?;
    while sent < MESSAGE {
        sent += retry_on_intr(|| rustix::net::send(stream, &message[sent..], SendFlags::NOSIGNAL))
            .map_err(socket)?;
    }
    Ok(())
}

/// Takes a segment of at most `limit` bytes from the process at the other end and maps it. Nothing that the
/// peer says is taken on trust: see [`Segment::attach`].
///
/// Waits as long as the stream's read timeout allows: set one where the peer may never send.
///
/// # Errors
/// Every [`HandoverError`]; the stream is of no further use after one, and descriptors that came are closed.
pub fn receive(stream: &UnixStream, limit: usize) -> Result<Segment, HandoverError> {
    let mut message = [0; MESSAGE];
    let (mut received, descriptors, cut) = first_part(stream, &mut message)?;
    while received < MESSAGE {
        let rest = &mut message[received..];
        match retry_on_intr(|| rustix::net::recv(stream, &mut *rest, RecvFlags::empty())).map_err(socket)? {
            (_, 0) => return Err(HandoverError::Closed { received, wanted: MESSAGE }),
            (_, count) => received += count,
        }
    }
    if message[..7] != MAGIC {
        let [a, b, c, d, ..] = message;
        return Err(HandoverError::Foreign { head: [a, b, c, d] });
    }
    if message[7] != VERSION {
        return Err(HandoverError::Version { peer: message[7], own: VERSION });
    }
    let count = descriptors.len();
    let [descriptor] =
        <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| HandoverError::Descriptors { count })?;
    if cut {
        return Err(HandoverError::Descriptors { count });
    }
    // The upper eight of its sixteen bytes.
    let length = (u128::from_le_bytes(message) >> 64) as u64;
    let size = usize::try_from(length).ok().filter(|size| *size <= limit);
    let size = size.ok_or(HandoverError::TooLarge { length, limit })?;
    Ok(Segment::attach(descriptor, size)?)
}

/// The first bytes of the message with the descriptors that came along, and whether the kernel cut some off.
fn first_part(
    stream: &UnixStream,
    message: &mut [u8; MESSAGE],
) -> Result<(usize, Vec<OwnedFd>, bool), HandoverError> {
    // Alignment leaves room for two: more are cut off and closed by the kernel.
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let answer = retry_on_intr(|| {
        rustix::net::recvmsg(stream, &mut [IoSliceMut::new(message)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(socket)?;
    if answer.bytes == 0 {
        return Err(HandoverError::Closed { received: 0, wanted: MESSAGE });
    }
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    Ok((answer.bytes, descriptors, answer.flags.contains(ReturnFlags::CTRUNC)))
}

fn socket(errno: rustix::io::Errno) -> HandoverError {
    HandoverError::Socket(io::Error::from(errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::SegmentError;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    fn pair() -> (UnixStream, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        (here, there)
    }

    /// A message as a peer could send it, with these descriptors.
    fn send_raw(stream: &UnixStream, message: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
        let sent = rustix::net::sendmsg(stream, &[IoSlice::new(message)], &mut control, SendFlags::empty());
        assert_eq!(sent.unwrap(), message.len());
    }

    fn announcing(size: u64) -> [u8; MESSAGE] {
        let mut message = *b"bwshm\r\n\x01........";
        message[8..].copy_from_slice(&size.to_le_bytes());
        message
    }

    #[test]
    fn both_ends_see_the_same_bytes() {
        let (here, there) = pair();
        let ours = Segment::create("test", 10_000).unwrap();
        send(&here, &ours).unwrap();
        let theirs = receive(&there, 10_000).unwrap();
        assert_eq!(theirs.size(), 10_000);
        theirs.write(9_990, b"0123456789").unwrap();
        drop(theirs);
        let mut seen = [0; 10];
        ours.read(9_990, &mut seen).unwrap();
        assert_eq!(&seen, b"0123456789");
    }

    #[test]
    fn several_follow_one_another() {
        let (here, there) = pair();
        for size in 1..=5 {
            send(&here, &Segment::create("test", size).unwrap()).unwrap();
        }
        for size in 1..=5 {
            assert_eq!(receive(&there, 5).unwrap().size(), size);
        }
    }

    #[test]
    fn a_message_in_pieces_arrives() {
        let (mut here, there) = pair();
        let segment = Segment::create("test", 4096).unwrap();
        let message = announcing(4096);
        send_raw(&here, &message[..1], &[segment.as_fd()]);
        let rest = std::thread::spawn(move || {
            for byte in &message[1..] {
                here.write_all(&[*byte]).unwrap();
            }
        });
        assert_eq!(receive(&there, 4096).unwrap().size(), 4096);
        rest.join().unwrap();
    }

    #[test]
    fn an_end_is_told_from_a_message() {
        let (here, there) = pair();
        drop(here);
        assert!(matches!(receive(&there, 1), Err(HandoverError::Closed { received: 0, .. })));
        let (here, there) = pair();
        send_raw(&here, &announcing(1)[..9], &[]);
        drop(here);
        assert!(matches!(receive(&there, 1), Err(HandoverError::Closed { received: 9, .. })));
    }

    #[test]
    fn silence_ends_with_the_timeout() {
        let (_here, there) = pair();
        there.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(matches!(receive(&there, 1), Err(HandoverError::Socket(_))));
    }

    #[test]
    fn a_gone_peer_is_an_error() {
        let (here, there) = pair();
        drop(there);
        let segment = Segment::create("test", 1).unwrap();
        assert!(matches!(send(&here, &segment), Err(HandoverError::Socket(_))));
    }

    #[test]
    fn foreign_messages_are_refused() {
        let segment = Segment::create("test", 4096).unwrap();
        let refusal = |message: &[u8], descriptors: &[BorrowedFd<'_>]| {
            let (here, there) = pair();
            send_raw(&here, message, descriptors);
            receive(&there, 1 << 20).unwrap_err()
        };
        let error = refusal(b"GET / HTTP/1.1\r\n", &[segment.as_fd()]);
        assert!(matches!(error, HandoverError::Foreign { head: [b'G', b'E', b'T', b' '] }), "{error}");
        let mut message = announcing(4096);
        message[7] = 9;
        let error = refusal(&message, &[segment.as_fd()]);
        assert!(matches!(error, HandoverError::Version { peer: 9, own: 1 }), "{error}");
        let error = refusal(&announcing(4096), &[]);
        assert!(matches!(error, HandoverError::Descriptors { count: 0 }), "{error}");
        for count in [2, 3, 8] {
            let error = refusal(&announcing(4096), &vec![segment.as_fd(); count]);
            assert!(matches!(error, HandoverError::Descriptors { .. }), "{count}: {error}");
        }
    }

    #[test]
    fn foreign_descriptors_are_refused() {
        let refusal = |size, descriptor: BorrowedFd<'_>| {
            let (here, there) = pair();
            send_raw(&here, &announcing(size), &[descriptor]);
            receive(&there, 1 << 20).unwrap_err()
        };
        let file = File::open("/proc/self/exe").unwrap();
        let error = refusal(4096, file.as_fd());
        assert!(matches!(error, HandoverError::Segment(SegmentError::Unsealed { .. })), "{error}");
        let segment = Segment::create("test", 4096).unwrap();
        let error = refusal(8192, segment.as_fd());
        assert!(matches!(error, HandoverError::Segment(SegmentError::WrongSize { .. })), "{error}");
        for size in [(1 << 20) + 1, u64::MAX] {
            let error = refusal(size, segment.as_fd());
            assert!(matches!(error, HandoverError::TooLarge { length, .. } if length == size), "{error}");
        }
    }
}
