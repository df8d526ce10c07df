//! The software HCA, used through barewire's driver.

use std::net::IpAddr;

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::hca::{Config, Device, WireKind};
use barewire_mlx5::request::{
    CompareSwap, FetchAdd, Read, Segments, Send, SendImmediate, Write, WriteImmediate,
};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, DataSegment, Mtu,
    Polled, PortAddress, ProtectionDomain, RcAddress, RcConfig, RcPath, RcQueuePair,
    RemoteAddressSegment, Uar,
};

use crate::Result;
use crate::side::{
    ACK_TIMEOUT, Done, Endpoint, LOG_READS, MEMORY, MIN_RNR_NAK, Operation, Place, RETRIES, Side,
    WINDOW,
};

/// The name of the device on the command line.
pub(crate) const NAME: &str = "software";

/// Shortly before the sequence numbers wrap.
const PSN: u32 = 0xff_ff80;
const SIGNALLED: ControlFlags = ControlFlags::COMPLETION;

pub(crate) struct Software {
    pair: RcQueuePair,
    completions: CompletionQueue,
    memory: Buffer,
    gid: [u8; 16],
    peer: Option<Endpoint>,
    device: Device,
}

impl Software {
    pub(crate) fn open(address: Option<IpAddr>) -> Result<Self> {
        let config = Config::from_env()?;
        let (address, wire) = (address.or(config.address), WireKind::Roce);
        let device = Device::open(config.address(address).wire(wire))?;
        let context = Context::open(Soft::new(device.clone()))?;
        let domain = ProtectionDomain::allocate(&context)?;
        let uar = Uar::allocate(&context)?;
        let completions = CompletionQueue::create(&context, &uar, 1024)?;
        let config = RcConfig::default().receive_entries(WINDOW as u32);
        let pair = RcQueuePair::create(&domain, &uar, &completions, &completions, &config)?;
        let memory = Buffer::allocate(&domain, MEMORY, Access::all())?;
        Ok(Self { pair, completions, memory, gid: context.port_address().gid, peer: None, device })
    }

    /// Zero bytes are no segment: a length of zero has another meaning.
    fn segments(&self, place: Place) -> Result<Vec<DataSegment>> {
        if place.length == 0 {
            return Ok(Vec::new());
        }
        let segment = self.memory.region().segment(place.offset, place.length);
        Ok(vec![segment.ok_or_else(|| format!("{place:?} is not in the memory"))?])
    }

    fn remote(&self, offset: usize) -> Result<RemoteAddressSegment> {
        let peer = self.peer.ok_or("not connected")?;
        Ok(RemoteAddressSegment::new(peer.address + offset as u64, peer.rkey))
    }
}

impl Side for Software {
    fn endpoint(&self) -> Endpoint {
        let region = self.memory.region();
        Endpoint {
            qpn: self.pair.number(),
            psn: PSN,
            gid: self.gid,
            address: region.address(),
            rkey: region.rkey(),
        }
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        let remote = PortAddress { gid: peer.gid, mac: [0; 6], lid: 0 };
        self.pair.connect(
            &RcPath::to(&RcAddress {
                port: remote,
                number: peer.qpn,
                psn: peer.psn,
                mtu: Mtu::Bytes1024,
            })
            .send_psn(Some(PSN))
            .ack_timeout(ACK_TIMEOUT)
            .retry_count(RETRIES)
            .min_rnr_nak(MIN_RNR_NAK)
            .log_max_reads(LOG_READS),
        )?;
        self.peer = Some(*peer);
        Ok(())
    }

    fn post(&mut self, operation: &Operation) -> Result<()> {
        match *operation {
            Operation::Send { local, immediate } => {
                let local = self.segments(local)?;
                match immediate {
                    Some(immediate) => self
                        .pair
                        .send
                        .post(SendImmediate { local: Segments(&local), immediate }, SIGNALLED)?,
                    None => self.pair.send.post(Send(Segments(&local)), SIGNALLED)?,
                }
            }
            Operation::Write { local, remote, immediate } => {
                let (local, remote) = (self.segments(local)?, self.remote(remote)?);
                match immediate {
                    Some(immediate) => self.pair.send.post(
                        WriteImmediate { local: Segments(&local), remote, immediate },
                        SIGNALLED,
                    )?,
                    None => {
                        self.pair.send.post(Write { local: Segments(&local), remote }, SIGNALLED)?
                    }
                }
            }
            Operation::Read { local, remote } => {
                let (local, remote) = (self.segments(local)?, self.remote(remote)?);
                self.pair.send.post(Read { local: Segments(&local), remote }, SIGNALLED)?
            }
            Operation::FetchAdd { local, remote, operand } => {
                let (local, remote) = (self.segments(local)?, self.remote(remote)?);
                self.pair
                    .send
                    .post(FetchAdd { local: local[0], remote, add: operand }, SIGNALLED)?
            }
            Operation::CompareSwap { local, remote, compare, swap } => {
                let (local, remote) = (self.segments(local)?, self.remote(remote)?);
                self.pair
                    .send
                    .post(CompareSwap { local: local[0], remote, compare, swap }, SIGNALLED)?
            }
        };
        Ok(())
    }

    fn post_receive(&mut self, place: Place) -> Result<()> {
        let segments = self.segments(place)?;
        if !self.pair.receive.push_scatter(&segments) {
            return Err("the receive ring is full".into());
        }
        self.pair.receive.publish();
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Done>> {
        let Some(completion) = self.completions.poll().map(Polled::completion) else {
            return Ok(None);
        };
        let received = |immediate| Done::Received { length: completion.byte_count, immediate };
        let done = match completion.kind {
            CompletionKind::Send => {
                self.pair.send.reap(completion.wqe_counter);
                return Ok(Some(Done::Posted));
            }
            CompletionKind::Receive => received(None),
            CompletionKind::ReceiveImmediate(immediate)
            | CompletionKind::WriteImmediate(immediate) => received(Some(immediate)),
            CompletionKind::SendError(failure) | CompletionKind::ReceiveError(failure) => {
                return Err(format!("{failure}; {:?}", self.device.counters()).into());
            }
            kind => return Err(format!("a completion of another kind: {kind:?}").into()),
        };
        self.pair.receive.reap();
        Ok(Some(done))
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write(offset, bytes)?)
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        Ok(self.memory.read(offset, bytes)?)
    }

    fn finish(&mut self) -> Result<()> {
        println!("{NAME}: {:?}", self.device.counters());
        match self.device.take_reports().first() {
            Some(report) => Err(format!("the device found a mistake: {report}").into()),
            None => Ok(()),
        }
    }
}
