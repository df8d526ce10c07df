//! What the two processes tell each other beside the wire that is tested: by TCP.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use barewire_tcp::{Listener, Stream};

use crate::Result;
use crate::side::Endpoint;

const LIMIT: u32 = 4096;
/// For a peer that is slow, not for one that is gone.
const PATIENCE: Duration = Duration::from_mins(2);

const PLAN: u16 = 1;
const ENDPOINT: u16 = 2;
const READY: u16 = 3;
const DONE: u16 = 4;
const GIVEN_UP: u16 = 5;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Of each kind and direction.
    pub(crate) operations: u64,
    /// Of lengths and contents.
    pub(crate) seed: u64,
}

pub(crate) struct Link {
    stream: Stream,
}

impl Link {
    pub(crate) fn listen(address: IpAddr, port: u16) -> Result<(Self, Plan)> {
        let mut link = Self { stream: Listener::bind(Some(address), port, LIMIT)?.accept(PATIENCE)? };
        let [operations, seed] = numbers(&link.expect(PLAN)?)?;
        Ok((link, Plan { operations, seed }))
    }

    pub(crate) fn connect(address: IpAddr, port: u16, plan: Plan) -> Result<(Self, Plan)> {
        let address = SocketAddr::new(address, port);
        let deadline = Instant::now() + PATIENCE;
        // The other process may not listen yet.
        let stream = loop {
            match Stream::connect(address, LIMIT, PATIENCE) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let mut link = Self { stream };
        link.tell(PLAN, &[plan.operations, plan.seed])?;
        Ok((link, plan))
    }

    /// Tells the peer who we are; gives who it is.
    pub(crate) fn introduce(&mut self, own: Endpoint) -> Result<Endpoint> {
        let [high, low] = [own.gid.first_chunk(), own.gid.last_chunk()]
            .map(|half: Option<&[u8; 8]>| u64::from_be_bytes(*half.expect("half of sixteen")));
        let words = [u64::from(own.qpn), u64::from(own.psn), high, low, own.address, u64::from(own.rkey)];
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

    /// Tells the peer why it shall not wait for us any more, as far as it still listens.
    pub(crate) fn give_up(&mut self, reason: &str) {
        let reason = &reason.as_bytes()[..reason.len().min(LIMIT as usize)];
        let _ = self.stream.send(GIVEN_UP, reason, PATIENCE);
    }

    fn tell(&mut self, kind: u16, words: &[u64]) -> Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        Ok(self.stream.send(kind, &bytes, PATIENCE)?)
    }

    fn expect(&mut self, kind: u16) -> Result<Vec<u8>> {
        let message = self.stream.receive(PATIENCE)?;
        match message.kind {
            GIVEN_UP => {
                Err(format!("the peer gave up: {}", String::from_utf8_lossy(&message.payload)).into())
            }
            other if other != kind => Err(format!("message {other} in place of {kind}").into()),
            _ => Ok(message.payload),
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
