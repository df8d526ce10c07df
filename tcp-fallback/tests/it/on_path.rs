//! An attacker on the path between two ends that have the key: nothing that it changes takes
//! effect.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::handshake::{
    CHALLENGE_BYTES, CLAIM_BYTES, Claim, HELLO_BYTES, Purpose, VERDICT_BYTES,
};
use barewire_tcp::listener::Limits;
use barewire_tcp::outbox::{Outbox, Spare};
use barewire_tcp::region::{Region, Regions, Rights};
use barewire_tcp::request::{Action, Change, Outcome, RESPONSE_BYTES, Request, Response};
use barewire_tcp::seal::is_altered;
use barewire_tcp::socket::{RECEIVE, Socket};
use barewire_tcp::target::Target;

/// Long enough for a machine that is busy with other things.
const DEADLINE: Duration = Duration::from_mins(1);
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SERVICE: u64 = 77;
/// Bytes before and after a record's payload.
const HEAD: usize = 4;
const TAG: usize = 16;

/// An attack on a record.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Attack {
    /// Flips a bit of this byte.
    Flip(usize),
    /// Flips a bit of this byte, counted from the last.
    FlipFromEnd(usize),
    Drop,
    Duplicate,
    /// Swaps it with the next.
    Reorder,
    /// Replaces it by a record of the other end.
    Reflect,
    /// Replaces it by the first record of the connection.
    Replay,
    /// Cuts the stream after so many bytes of it.
    Truncate(usize),
    /// Replaces it by other bytes.
    Forge,
}

const ATTACKS: [Attack; 17] = [
    // The length, smaller, larger and impossible.
    Attack::Flip(0),
    Attack::Flip(1),
    Attack::Flip(2),
    Attack::Flip(3),
    // The request, its data, and the tag.
    Attack::Flip(HEAD),
    Attack::Flip(HEAD + 20),
    Attack::FlipFromEnd(TAG),
    Attack::FlipFromEnd(TAG - 1),
    Attack::FlipFromEnd(0),
    Attack::Drop,
    Attack::Duplicate,
    Attack::Reorder,
    Attack::Reflect,
    Attack::Replay,
    Attack::Truncate(2),
    Attack::Truncate(25),
    Attack::Forge,
];

/// The record of each direction that is attacked.
const ATTACKED: usize = 2;

/// A proxy in front of `target`, for one connection. It attacks the bytes of one direction.
fn proxy(target: SocketAddr, requests: bool, attack: Option<Attack>) -> SocketAddr {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(target).unwrap();
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let (record, recorded) = mpsc::channel();
        let (to_far, to_near) =
            ((near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near));
        let forth = HELLO_BYTES + CLAIM_BYTES;
        let back = CHALLENGE_BYTES + VERDICT_BYTES;
        let (attacked, other, handshakes) = if requests {
            (to_far, to_near, [forth, back])
        } else {
            (to_near, to_far, [back, forth])
        };
        std::thread::spawn(move || {
            let _ = relay(other, handshakes[1], |bytes, to, _| {
                let _ = record.send(bytes.to_vec());
                to.write_all(bytes)
            });
        });
        let mut first = Vec::new();
        let mut number = 0;
        let _ = relay(attacked, handshakes[0], |bytes, to, from| {
            if number == 0 {
                first = bytes.to_vec();
            }
            number += 1;
            match attack {
                Some(attack) if number == ATTACKED + 1 => {
                    let other = || recorded.recv_timeout(DEADLINE).unwrap();
                    strike(attack, bytes, to, from, &first, other)
                }
                _ => to.write_all(bytes),
            }
        });
    });
    address
}

/// Forwards the handshake unchanged, and then each record as `pass` returns it.
fn relay(
    (mut from, mut to): (TcpStream, TcpStream),
    handshake: usize,
    mut pass: impl FnMut(&[u8], &mut TcpStream, &mut TcpStream) -> io::Result<()>,
) -> io::Result<()> {
    let mut through = || {
        let mut left = handshake;
        while left > 0 {
            let mut bytes = [0; 256];
            let most = left.min(bytes.len());
            let count = from.read(&mut bytes[..most])?;
            if count == 0 {
                return Ok(());
            }
            to.write_all(&bytes[..count])?;
            left -= count;
        }
        loop {
            let bytes = record(&mut from)?;
            pass(&bytes, &mut to, &mut from)?;
        }
    };
    let done: io::Result<()> = through();
    let _ = to.shutdown(Shutdown::Write);
    done
}

fn record(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = [0; HEAD];
    from.read_exact(&mut head)?;
    let mut bytes = head.to_vec();
    bytes.resize(HEAD + u32::from_le_bytes(head) as usize + TAG, 0);
    from.read_exact(&mut bytes[HEAD..])?;
    Ok(bytes)
}

fn strike(
    attack: Attack,
    bytes: &[u8],
    to: &mut TcpStream,
    from: &mut TcpStream,
    first: &[u8],
    other: impl Fn() -> Vec<u8>,
) -> io::Result<()> {
    let mut changed = bytes.to_vec();
    match attack {
        Attack::Flip(at) => changed[at] ^= 1,
        Attack::FlipFromEnd(at) => changed[bytes.len() - 1 - at] ^= 1,
        Attack::Drop => return Ok(()),
        Attack::Duplicate => changed.extend_from_slice(bytes),
        Attack::Reorder => {
            changed = record(from)?;
            changed.extend_from_slice(bytes);
        }
        Attack::Reflect => changed = other(),
        Attack::Replay => changed = first.to_vec(),
        Attack::Truncate(length) => {
            to.write_all(&bytes[..length])?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Attack::Forge => changed[HEAD..].fill(0xee),
    }
    to.write_all(&changed)
}

/// A target over 64 words, and a client that connects to it through the attacker.
struct Job {
    target: Target,
    memory: &'static mut [u64; 64],
    token: u64,
    socket: Socket,
    outbox: Outbox,
    spare: Spare,
    held: Vec<u8>,
}

fn job(requests: bool, attack: Option<Attack>) -> Job {
    let memory = Box::leak(Box::new([0u64; 64]));
    let start = NonNull::from(&mut *memory).cast::<u8>();
    let rights = Rights { write: true, read: true, atomic: true };
    // SAFETY: it is leaked, and read only while no access is in progress.
    #[allow(unsafe_code, reason = "registration is the caller's promise")]
    let region = Arc::new(unsafe { Region::new(start, size_of_val(memory), rights, None) });
    let regions = Arc::new(Regions::default());
    let token = regions.add(&region).unwrap();
    let key = Key::from_bytes([1; 32]);
    let target = Target::start(HERE, key.clone(), SERVICE, regions, Limits::default()).unwrap();
    let address = proxy(target.address(), requests, attack);
    let claim = Claim {
        purpose: Purpose::Memory,
        service: SERVICE,
        endpoint: 0,
        from_service: 1,
        from_endpoint: 1,
    };
    let connector =
        Connector::start(address, Some(HERE.into()), &key, claim, DEADLINE, Limits::default());
    let socket = connector.unwrap().wait(std::thread::yield_now).unwrap();
    assert!(socket.is_protected());
    Job {
        target,
        memory,
        token,
        socket,
        outbox: Outbox::default(),
        spare: Spare::default(),
        held: vec![],
    }
}

impl Job {
    /// Requests `action` on a word, with data: one record.
    fn ask(&mut self, word: usize, action: Action, data: &[u8]) {
        let address = self.memory.as_ptr().addr() as u64 + 8 * word as u64;
        let request = Request { token: self.token, address, action };
        assert!(self.outbox.push(&self.spare, &[&request.to_bytes()[..], data].concat()));
        // The other end may have closed the connection.
        let _ = self.outbox.flush(&mut self.socket, &self.spare);
    }

    fn add(&mut self, word: usize) {
        let action =
            Action::Atomic { change: Change::Add, width: 8, fetch: false, operand: 5, compare: 0 };
        self.ask(word, action, &[]);
    }

    /// Reads a response, if one has arrived.
    fn poll(&mut self, data: usize) -> io::Result<Option<(Response, Vec<u8>)>> {
        if self.held.len() < RESPONSE_BYTES + data {
            let mut bytes = vec![0; RECEIVE];
            match self.socket.receive(&mut bytes)? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(count) => self.held.extend_from_slice(&bytes[..count]),
                None => std::thread::yield_now(),
            }
        }
        if self.held.len() < RESPONSE_BYTES + data {
            return Ok(None);
        }
        let response = Response::parse(self.held.first_chunk().unwrap()).unwrap();
        let data = self.held[RESPONSE_BYTES..RESPONSE_BYTES + data].to_vec();
        self.held.drain(..RESPONSE_BYTES + data.len());
        Ok(Some((response, data)))
    }

    /// Waits for a response.
    fn response(&mut self, data: usize) -> io::Result<(Response, Vec<u8>)> {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < DEADLINE, "no response");
            if let Some(response) = self.poll(data)? {
                return Ok(response);
            }
        }
    }
}

/// Requests to the peer's memory are altered on the way.
#[test]
fn changed_requests_take_no_effect() {
    for attack in ATTACKS.map(Some).into_iter().chain([None]) {
        let mut job = job(true, attack);
        job.ask(0, Action::Put { length: 8 }, &[1; 8]);
        assert_eq!(job.response(0).unwrap().0.outcome, Outcome::Done);
        job.add(1);
        assert_eq!(job.response(0).unwrap().0.outcome, Outcome::Done);
        // This one is attacked, and each after it would change another word.
        job.ask(2, Action::Put { length: 8 }, &[2; 8]);
        for word in 3..60 {
            job.add(word);
        }
        let mut outcome = None;
        if attack.is_some() {
            // Every response until the connection ends.
            while let Ok((response, _)) = job.response(0) {
                outcome = Some(response.outcome);
            }
        } else {
            while job.response(0).unwrap().0.finished < 60 {}
        }
        let expected = match attack {
            None | Some(Attack::Truncate(_)) => None,
            Some(_) => Some(Outcome::Altered),
        };
        assert_eq!(outcome, expected, "{attack:?}");
        drop(job.target);
        let whole = u64::from_ne_bytes([1; 8]);
        let put = u64::from_ne_bytes([2; 8]);
        assert_eq!(job.memory[..2], [whole, 5], "{attack:?}");
        match attack {
            None => assert_eq!(job.memory[2], put),
            // The first of the two is genuine, and is executed unless it is read together with the
            // other.
            Some(Attack::Duplicate) => assert!([0, put].contains(&job.memory[2])),
            Some(_) => assert_eq!(job.memory[2], 0, "{attack:?}"),
        }
        let others = if attack.is_none() { 5 } else { 0 };
        assert!(job.memory[3..60].iter().all(|word| *word == others), "{attack:?}");
    }
}

/// A put of many records, of which one in the middle is altered: the data of those before it are
/// stored, and its data are not.
#[test]
fn a_changed_part_of_a_long_put() {
    const LENGTH: usize = 64 * 8;
    let mut job = job(true, Some(Attack::Flip(HEAD + 3)));
    job.ask(0, Action::Put { length: LENGTH as u64 }, &[3; 100]);
    for part in 0..4 {
        assert!(job.outbox.push(&job.spare, &[3; 103]), "{part}");
        let _ = job.outbox.flush(&mut job.socket, &job.spare);
    }
    let outcome = job.response(0).unwrap().0.outcome;
    assert_eq!(outcome, Outcome::Altered);
    drop(job.target);
    // At most two records were genuine, and each is stored as a whole or not at all.
    let bytes: Vec<u8> = job.memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let put = bytes.iter().take_while(|byte| **byte == 3).count();
    assert!([0, 100, 203].contains(&put) && bytes[put..].iter().all(|byte| *byte == 0), "{put}");
}

/// Responses of the peer's memory are altered on the way.
#[test]
fn changed_answers_are_not_handed_on() {
    for attack in ATTACKS {
        let mut job = job(false, Some(attack));
        job.ask(0, Action::Put { length: 8 }, &[7; 8]);
        assert_eq!(job.response(0).unwrap().0.outcome, Outcome::Done);
        // One response after the other until the third is attacked, and on, as more may be
        // outstanding.
        let (start, mut good) = (Instant::now(), 0);
        let failure = loop {
            assert!(start.elapsed() < DEADLINE, "{attack:?}: nothing was noticed");
            job.ask(0, Action::Get { length: 8 }, &[]);
            let before = good;
            let mut wait = || -> io::Result<()> {
                let asked = Instant::now();
                while good == before && asked.elapsed() < Duration::from_millis(20) {
                    let Some((response, data)) = job.poll(8)? else { continue };
                    assert_eq!(
                        (response.outcome, response.finished),
                        (Outcome::Done, good + 2),
                        "{attack:?}"
                    );
                    assert_eq!(data, [7; 8], "{attack:?}");
                    good += 1;
                }
                Ok(())
            };
            if let Err(error) = wait() {
                break error;
            }
        };
        let most = if attack == Attack::Duplicate { 2 } else { 1 };
        assert!(good <= most, "{attack:?}: {good}");
        let cut = matches!(attack, Attack::Truncate(_));
        let noticed = is_altered(&failure) || failure.kind() == io::ErrorKind::UnexpectedEof && cut;
        assert!(noticed, "{attack:?}: {failure}");
    }
}

/// The handshake: the verdict, and whether the connection is protected.
#[test]
fn changed_handshakes_fail() {
    use barewire_tcp::connector::ConnectFailure;
    use barewire_tcp::handshake::{Acceptor, HandshakeError, Verdict};

    let key = Key::from_bytes([1; 32]);
    let claim = Claim {
        purpose: Purpose::Memory,
        service: 1,
        endpoint: 0,
        from_service: 0,
        from_endpoint: 0,
    };
    // The byte of the hello that requests protection is cleared on the way; a refusal becomes an
    // acceptance.
    for (protection, failure) in [(true, HandshakeError::Key), (false, HandshakeError::Altered)] {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let theirs = key.clone();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello).unwrap();
            if protection {
                hello[6] = 0;
            }
            let (acceptor, challenge) =
                Acceptor::challenge(&theirs, &hello, [9; 32], false).unwrap();
            stream.write_all(&challenge).unwrap();
            let mut claim = [0; CLAIM_BYTES];
            if stream.read_exact(&mut claim).is_ok() {
                let (_, session) = acceptor.admit(&theirs, &claim).unwrap();
                let mut verdict = session.verdict(Verdict::Unknown);
                verdict[4] = Verdict::Welcome as u8;
                stream.write_all(&verdict).unwrap();
            }
        });
        let limits = Limits::default();
        let connector =
            Connector::start(address, Some(HERE.into()), &key, claim, DEADLINE, limits).unwrap();
        let failed = connector.wait(std::thread::yield_now).unwrap_err();
        assert!(matches!(failed, ConnectFailure::Handshake(found) if found == failure), "{failed}");
        other.join().unwrap();
    }
}
