//! The TCP connection between the two processes, separate from the wire under test. A message is
//! its kind (u16) and its length in bytes (u16), little-endian, and then its bytes.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::Result;
use crate::side::Endpoint;

/// Most bytes of a message.
const LIMIT: usize = 4096;
/// Time limit for a slow peer.
const PATIENCE: Duration = Duration::from_mins(2);

const PLAN: u16 = 1;
const ENDPOINT: u16 = 2;
const READY: u16 = 3;
const DONE: u16 = 4;
const GIVEN_UP: u16 = 5;

/// The operations of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Number of operations of each kind and direction.
    pub(crate) operations: u64,
    /// Seed of lengths and contents.
    pub(crate) seed: u64,
}

pub(crate) struct Link {
    stream: TcpStream,
}

impl Link {
    pub(crate) fn listen(address: IpAddr, port: u16) -> Result<(Self, Plan)> {
        let listener = TcpListener::bind((address, port))?;
        listener.set_nonblocking(true)?;
        let mut link = Self::new(until(|| listener.accept().map(|(stream, _)| stream))?)?;
        let [operations, seed] = numbers(&link.expect(PLAN)?)?;
        Ok((link, Plan { operations, seed }))
    }

    pub(crate) fn connect(address: IpAddr, port: u16, plan: Plan) -> Result<(Self, Plan)> {
        // The other process may not listen yet.
        let mut link = Self::new(until(|| TcpStream::connect((address, port)))?)?;
        link.tell(PLAN, &[plan.operations, plan.seed])?;
        Ok((link, plan))
    }

    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream })
    }

    /// Sends the endpoint of this side, and returns that of the peer.
    pub(crate) fn introduce(&mut self, own: Endpoint) -> Result<Endpoint> {
        let [high, low] = [own.gid.first_chunk(), own.gid.last_chunk()]
            .map(|half: Option<&[u8; 8]>| u64::from_be_bytes(*half.expect("half of sixteen")));
        let words =
            [u64::from(own.qpn), u64::from(own.psn), high, low, own.address, u64::from(own.rkey)];
        self.tell(ENDPOINT, &words)?;
        let [qpn, psn, high, low, address, rkey] = numbers(&self.expect(ENDPOINT)?)?;
        let gid = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        let [qpn, psn, rkey] = [qpn, psn, rkey].map(u32::try_from);
        Ok(Endpoint { qpn: qpn?, psn: psn?, gid, address, rkey: rkey? })
    }

    pub(crate) fn tell_ready(&mut self) -> Result<()> {
        self.tell(READY, &[])
    }

    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        self.expect(READY).map(drop)
    }

    pub(crate) fn tell_done(&mut self) -> Result<()> {
        self.tell(DONE, &[])
    }

    pub(crate) fn wait_done(&mut self) -> Result<()> {
        self.expect(DONE).map(drop)
    }

    /// Sends the reason for ending early, if the connection still works.
    pub(crate) fn give_up(&mut self, reason: &str) {
        let _ = self.send(GIVEN_UP, &reason.as_bytes()[..reason.len().min(LIMIT)]);
    }

    fn tell(&mut self, kind: u16, words: &[u64]) -> Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        Ok(self.send(kind, &bytes)?)
    }

    fn send(&mut self, kind: u16, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len() as u16;
        self.stream.write_all(&[&kind.to_le_bytes(), &length.to_le_bytes(), bytes].concat())
    }

    fn expect(&mut self, kind: u16) -> Result<Vec<u8>> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        let [found, length] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes);
        let mut bytes = vec![0; length.into()];
        self.stream.read_exact(&mut bytes)?;
        match found {
            GIVEN_UP => {
                Err(format!("the peer gave up: {}", String::from_utf8_lossy(&bytes)).into())
            }
            other if other != kind => Err(format!("message {other} in place of {kind}").into()),
            _ => Ok(bytes),
        }
    }
}

/// Repeats `attempt` until it succeeds, or [`PATIENCE`] has passed.
fn until<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
            done => return done,
        }
    }
}

fn numbers<const N: usize>(bytes: &[u8]) -> Result<[u64; N]> {
    let mut words = [0; N];
    if bytes.len() != N * 8 {
        return Err(format!("a message of {} bytes in place of {}", bytes.len(), N * 8).into());
    }
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_be_bytes(*bytes);
    }
    Ok(words)
}
