//! The behaviours of every channel over the Rust API.

use barewire_channel::{Error, Failure, Receiver, Region, Request, Sender, Target};

use crate::pair::{Pair, Set, config};
use crate::suite::{Buffer, Channel, Fault};

/// A pair whose ends can be closed.
pub(crate) struct Driver {
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    source: Region,
    target: Region,
    rails: usize,
}

impl Driver {
    /// `whole` is the longest message that is not cut.
    pub(crate) fn new(set: Set, whole: u64) -> Self {
        let Pair { sender, receiver, source, target, .. } = Pair::new(set, &config().whole(whole));
        let (sender, receiver) = (Some(sender), Some(receiver));
        Self { sender, receiver, source, target, rails: set.rails }
    }
}

fn fault(error: Error) -> Fault {
    match error {
        Error::OutOfBounds { .. } => Fault::OutOfBounds,
        Error::Group(_) => Fault::Group,
        Error::Overlong { .. } => Fault::Overlong,
        Error::Refused { .. } => Fault::Refused,
        Error::UnknownRequest => Fault::UnknownRequest,
        Error::Failed(failure)
            if matches!(*failure, Failure::Closed { .. } | Failure::Rails(_)) =>
        {
            Fault::Closed
        }
        other => Fault::Other(other.to_string()),
    }
}

fn request(number: u64) -> Request {
    Request::from_bits(number).unwrap()
}

impl Channel for Driver {
    fn rails(&self) -> usize {
        self.rails
    }

    fn receive(&mut self, buffers: &[Buffer]) -> Result<Option<u64>, Fault> {
        let Self { receiver, target: region, .. } = self;
        let target = |buffer: &Buffer| {
            let Buffer { offset, length, tag } = *buffer;
            Target { region, offset, length, tag }
        };
        let targets: Vec<_> = buffers.iter().map(target).collect();
        let request = receiver.as_mut().unwrap().receive_group(&targets).map_err(fault)?;
        Ok(request.map(Request::to_bits))
    }

    fn send(&mut self, offset: usize, length: usize, tag: u32) -> Result<Option<u64>, Fault> {
        let sender = self.sender.as_mut().unwrap();
        let request = sender.send(&self.source, offset, length, tag).map_err(fault)?;
        Ok(request.map(Request::to_bits))
    }

    fn test_received(&mut self, number: u64) -> Result<Option<Vec<usize>>, Fault> {
        let received = self.receiver.as_mut().unwrap().test(request(number)).map_err(fault)?;
        Ok(received.map(|received| received.sizes().to_vec()))
    }

    fn test_sent(&mut self, number: u64) -> Result<Option<usize>, Fault> {
        self.sender.as_mut().unwrap().test(request(number)).map_err(fault)
    }

    fn fill_source(&mut self, offset: usize, bytes: &[u8]) {
        self.source.write(offset, bytes).unwrap();
    }

    fn fill_target(&mut self, offset: usize, bytes: &[u8]) {
        self.target.write(offset, bytes).unwrap();
    }

    fn target(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.target.read(offset, &mut bytes).unwrap();
        bytes
    }

    fn close_sender(&mut self) {
        self.sender = None;
    }

    fn close_receiver(&mut self) {
        self.receiver = None;
    }
}
