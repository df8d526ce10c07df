//! Messages as bytes.

use barewire_layouts::command::capability::PortType;

use barewire_tcp::frames;

use super::{Epoch, Limits, Message, QueuePairs, VERSION};
use crate::config::MAX_RAILS;
use crate::fail_over::Cause;
use crate::handshake::pairing::Pairing;
use crate::rails::RailInfo;

impl Message {
    /// The bytes of the frame.
    pub fn to_frame(&self) -> Vec<u8> {
        frames::frame(&self.to_bytes())
    }

    /// The bytes of the frame without its length.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut to = vec![self.kind() as u8];
        match self {
            Self::Offer { limits, rails } => {
                to.extend(VERSION.to_le_bytes());
                write_limits(&mut to, limits);
                write_rails(&mut to, rails);
            }
            Self::Answer { limits, rails, pairing, pairs } => {
                write_limits(&mut to, limits);
                write_rails(&mut to, rails);
                write_pairing(&mut to, pairing);
                write_rails_of_pairs(&mut to, pairs);
            }
            Self::Ready { pairing, pairs, address, keys } => {
                write_pairing(&mut to, pairing);
                write_rails_of_pairs(&mut to, pairs);
                write_keys(&mut to, *address, keys);
            }
            Self::Go { address, keys } => write_keys(&mut to, *address, keys),
            Self::Close { done } => to.extend(done.to_le_bytes()),
            Self::Refuse { reason } => to.extend(reason.as_bytes()),
            Self::Fence { at, cause, held } => {
                write_epoch(&mut to, *at);
                write_cause(&mut to, cause.as_ref());
                write_words(&mut to, &held.taken);
                to.extend(held.next.to_le_bytes());
                to.extend(held.announced.to_le_bytes());
            }
            Self::Try { at, pairs } | Self::Made { at, pairs } => {
                write_epoch(&mut to, *at);
                write_pairs(&mut to, pairs);
            }
            Self::Use { at } => write_epoch(&mut to, *at),
        }
        to
    }
}

fn write_limits(to: &mut Vec<u8>, limits: &Limits) {
    to.extend(limits.max_message.to_le_bytes());
    to.extend([limits.pairs, limits.partial.into()]);
}

fn write_rails(to: &mut Vec<u8>, rails: &[RailInfo]) {
    to.push(rails.len() as u8);
    for rail in rails {
        to.push(rail.name.len() as u8);
        to.extend(rail.name.as_bytes());
        to.extend(rail.address.gid);
        to.extend(rail.address.mac);
        to.extend(rail.address.lid.to_le_bytes());
        to.extend([u8::from(rail.port_type == PortType::Ethernet), rail.mtu as u8]);
        to.extend([rail.subnet_bits, rail.is_standby.into()]);
        to.extend(rail.max_share.to_le_bytes());
        to.extend(rail.weight.to_le_bytes());
    }
}

fn write_pairing(to: &mut Vec<u8>, pairing: &Pairing) {
    to.push(pairing.partners().len() as u8);
    to.extend(pairing.partners().iter().flat_map(|pair| [pair.connector, pair.listener]));
}

fn write_rails_of_pairs(to: &mut Vec<u8>, rails: &[QueuePairs]) {
    to.push(rails.len() as u8);
    for pairs in rails {
        write_pairs(to, pairs);
    }
}

fn write_pairs(to: &mut Vec<u8>, pairs: &QueuePairs) {
    to.push(pairs.ends.len() as u8);
    to.extend(pairs.ends.iter().flat_map(|end| [end.number, end.psn]).flat_map(u32::to_le_bytes));
    to.extend(pairs.enhancements.bits().to_le_bytes());
}

fn write_words(to: &mut Vec<u8>, words: &[u32]) {
    to.push(words.len() as u8);
    to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

fn write_keys(to: &mut Vec<u8>, address: u64, keys: &[u32; MAX_RAILS]) {
    to.extend(address.to_le_bytes());
    to.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
}

fn write_epoch(to: &mut Vec<u8>, at: Epoch) {
    to.push(at.place);
    to.extend(at.epoch.to_le_bytes());
}

fn write_cause(to: &mut Vec<u8>, cause: Option<&Cause>) {
    let Some(cause) = cause else { return to.push(0) };
    to.push(cause.operation as u8);
    to.extend(cause.codes);
    to.extend(cause.pair.to_le_bytes());
    to.extend(cause.remote.to_le_bytes());
    to.extend((cause.connected.as_millis() as u64).to_le_bytes());
    to.extend((cause.age.as_millis() as u64).to_le_bytes());
}
