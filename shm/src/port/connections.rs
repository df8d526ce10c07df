//! Connections: who comes, who goes, and what they hand over.

use std::os::fd::AsFd;

use rustix::event::epoll;

use super::{Deliver, LISTENER, PEER, Port, SENDER};
use crate::control::{Message, Refusal};
use crate::error::Corrupt;
use crate::fifo::Head;
use crate::link::Received;
use crate::peer::lost;
use crate::senders::Sender;

/// Events of the sockets that are looked at in one go.
const EVENTS: usize = 64;

impl Port {
    /// Looks at the sockets now: who comes, who goes, and what they hand over.
    #[cold]
    pub fn look(&mut self, deliver: &mut impl Deliver) {
        self.catch_up();
        let mut events = Vec::with_capacity(EVENTS);
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted or refused, there is nothing to be seen; the next look will.
        let _ = epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now));
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept(),
                data if data & PEER != 0 => deliver.peer(data as u32),
                data => self.hear(data as u16, deliver),
            }
        }
        if self.fifo.mend() {
            self.give_up(0, Corrupt("where the FIFO begins"), deliver);
        }
        self.shelf.catch_up();
        self.bury();
        self.point();
    }

    fn accept(&mut self) {
        // An error of accept is one of who comes, or passes: out of descriptors, for example.
        while let Ok(Some(link)) = self.listener.accept() {
            let Ok(who) = link.credentials() else { continue };
            let sender = Sender::new(link, who.process);
            let refusal = if self.config.users.allow(who.user) { Refusal::Full } else { Refusal::User };
            if refusal == Refusal::User {
                sender.refuse(refusal);
                continue;
            }
            let Some((number, sender)) = self.senders.add(sender) else { continue };
            let data = epoll::EventData::new_u64(SENDER | u64::from(number));
            if epoll::add(&*self.epoll, sender, data, epoll::EventFlags::IN).is_err() {
                self.senders.remove(number);
            }
        }
    }

    /// Something came over a sender's socket, or it ended.
    fn hear(&mut self, number: u16, deliver: &mut impl Deliver) {
        let Some(sender) = self.senders.get_mut(number) else { return };
        let heard = if sender.greeted {
            sender.receive()
        } else {
            match sender.link.receive() {
                Ok(Some(Received { message, .. })) => self.greet(number, &message),
                Ok(None) => Ok(()),
                Err(error) => {
                    sender.ended(&lost("recvmsg", error));
                    Ok(())
                }
            }
        };
        if let Err(corrupt) = heard {
            self.give_up(number, corrupt, deliver);
        }
    }

    fn greet(&mut self, number: u16, message: &[u8; crate::link::MESSAGE]) -> Result<(), Corrupt> {
        let Some(sender) = self.senders.get_mut(number) else { return Ok(()) };
        let Some(Message::Hello { secret_low, secret_high }) = Message::decode(message) else {
            return Err(Corrupt("its greeting"));
        };
        let secret = u128::from(secret_high) << 64 | u128::from(secret_low);
        if secret != self.address.secret {
            sender.refuse(Refusal::Secret);
            self.senders.remove(number);
            return Ok(());
        }
        let slots = self.config.fifo_slots as u64;
        let welcome = Message::Welcome { number: number.into(), slots, shelf: self.shelf.number() };
        match sender.link.send(&welcome.encode(), &[self.inbox.as_fd(), self.event.as_fd()]) {
            Ok(true) => {
                sender.greeted = true;
                self.shelf.join(&sender.link);
            }
            // It does not read, or is gone: it can come again.
            _ => drop(self.senders.remove(number)),
        }
        Ok(())
    }

    /// Forgets senders that ended, once what they sent was taken.
    fn bury(&mut self) {
        for number in self.senders.ended() {
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
