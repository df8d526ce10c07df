//! Connections: who comes, who goes, and what they hand over.

use std::time::Instant;

use rustix::event::epoll;

use super::{Deliver, LISTENER, PEER, Port, SENDER};
use crate::control::{Message, Refusal};
use crate::error::{Corrupt, LinkError};
use crate::fifo::Head;
use crate::link::Received;
use crate::peer::{exactly, lost};
use crate::senders::Sender;

/// Events of the sockets that are looked at in one go.
const EVENTS: usize = 16;

impl Port {
    /// Looks at the sockets now: who comes, who goes, and what they hand over. Does a limited amount of
    /// work, whatever other processes do.
    #[cold]
    pub fn look(&mut self, deliver: &mut impl Deliver) {
        self.catch_up();
        let mut events = Vec::with_capacity(EVENTS);
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted or refused, there is nothing to be seen; the next look will.
        let _ = epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now));
        let mut knocks = self.door.opens().is_some();
        for event in &events {
            match event.data.u64() {
                LISTENER => knocks = true,
                data if data & PEER != 0 => deliver.peer(data as u32),
                data => self.hear(data as u16, deliver),
            }
        }
        let now = Instant::now();
        if knocks {
            self.open_door(now, deliver);
        }
        while let Some((number, since)) = self.door.overdue(now) {
            let is_silent = |sender: &Sender| sender.since == since && !sender.greeted;
            if self.senders.get(number).is_some_and(is_silent) {
                self.senders.remove(number);
            }
        }
        self.hot.set_door(self.door.opens());
        if self.fifo.mend() {
            self.give_up(0, Corrupt("where the FIFO begins").into(), deliver);
        }
        self.shelf.catch_up();
        self.pay(deliver);
        self.bury();
        self.point();
    }

    fn open_door(&mut self, now: Instant, deliver: &mut impl Deliver) {
        let (users, senders, epoll) = (self.config.users, &mut self.senders, &*self.epoll);
        let opened = self.door.work(epoll, now, |link| {
            let who = link.credentials().ok()?;
            let sender = Sender::new(link, who.process, now);
            if !users.allow(who.user) {
                sender.refuse(Refusal::User);
                return None;
            }
            let (number, sender) = senders.add(sender)?;
            let data = epoll::EventData::new_u64(SENDER | u64::from(number));
            if epoll::add(epoll, sender, data, epoll::EventFlags::IN).is_err() {
                senders.remove(number);
                return None;
            }
            Some(number)
        });
        match opened {
            Ok(()) => self.door.reported = false,
            Err(error) if !self.door.reported => {
                self.door.reported = true;
                deliver.broken(0, lost("accept", error));
            }
            // It lasts, and was reported.
            Err(_) => {}
        }
    }

    /// Hands over what was asked for, to those who did not read their sockets before.
    fn pay(&mut self, deliver: &mut impl Deliver) {
        if !std::mem::take(&mut self.owing) {
            return;
        }
        for number in self.senders.those(Sender::is_owed) {
            let Some(sender) = self.senders.get_mut(number) else { continue };
            match sender.pay(&self.shelf) {
                Ok(()) => self.owing |= sender.is_owed(),
                Err(error) => self.give_up(number, error, deliver),
            }
        }
    }

    /// Takes in what a sender said over its socket.
    pub(super) fn receive(&mut self, number: u16) -> Result<(), LinkError> {
        let Some(sender) = self.senders.get_mut(number) else { return Ok(()) };
        let received = sender.receive(&self.shelf);
        self.owing |= sender.is_owed();
        received
    }

    /// Something came over a sender's socket, or it ended.
    fn hear(&mut self, number: u16, deliver: &mut impl Deliver) {
        let Some(sender) = self.senders.get_mut(number) else { return };
        let heard = if sender.greeted {
            self.receive(number)
        } else {
            match sender.link.receive().map_err(|error| lost("recvmsg", error)) {
                Ok(Some(received)) => self.greet(number, received),
                Ok(None) => Ok(()),
                Err(LinkError::Ended) => {
                    sender.ended();
                    Ok(())
                }
                Err(error) => Err(error),
            }
        };
        if let Err(error) = heard {
            self.give_up(number, error, deliver);
        }
    }

    fn greet(&mut self, number: u16, received: Received) -> Result<(), LinkError> {
        let Some(sender) = self.senders.get_mut(number) else { return Ok(()) };
        let [] = exactly(received.descriptors)?;
        let Message::Hello { secret_low, secret_high } = Message::decode(&received.message)? else {
            return Err(Corrupt("its greeting").into());
        };
        let secret = u128::from(secret_high) << 64 | u128::from(secret_low);
        if secret != self.address.secret {
            sender.refuse(Refusal::Secret);
            self.senders.remove(number);
            return Ok(());
        }
        let slots = self.config.fifo_slots as u64;
        let welcome = Message::Welcome { number: number.into(), slots, shelf: self.shelf.number() };
        match sender.link.send(&welcome.encode(), self.inbox.descriptor().as_slice()) {
            Ok(true) => sender.greeted = true,
            // It does not read, or is gone: it can come again.
            _ => drop(self.senders.remove(number)),
        }
        Ok(())
    }

    /// Forgets senders that ended, once what they sent was taken.
    fn bury(&mut self) {
        for number in self.senders.those(|sender| sender.is_ended) {
            let done = self
                .senders
                .get(number)
                .and_then(|sender| sender.lane.as_ref())
                .is_none_or(|lane| lane.peek().is_none());
            // The lane may be about to be announced by the FIFO.
            let announced = self.lanes.contains(&number)
                || self.senders.get(number).is_none_or(|sender| sender.lane.is_none());
            if done && (announced || matches!(self.fifo.peek(|_| false), Head::Empty)) {
                self.senders.remove(number);
                self.lanes.retain(|lane| *lane != number);
            }
        }
    }
}
