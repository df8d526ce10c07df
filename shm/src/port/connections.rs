//! The sockets of a port: new connections, closed ones and their messages.

use std::time::Instant;

use rustix::event::epoll;

use super::{Deliver, LISTENER, PEER, Port, SENDER};
use crate::control::{Message, Refusal};
use crate::entrance::ARRIVAL;
use crate::error::{Corrupt, LinkError};
use crate::fifo::Head;
use crate::link::Received;
use crate::peer::{exactly, socket_error};
use crate::senders::Sender;

/// Socket events that one check handles.
const MAX_EVENTS: usize = 16;

impl Port {
    /// Checks the sockets now: accepts connections, removes closed ones and handles messages. The
    /// amount of work per call is limited, whatever other processes do.
    #[cold]
    pub fn check_sockets(&mut self, deliver: &mut impl Deliver) {
        self.sync_ring();
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // On an error there are no events; the next check tries again.
        let _ = epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now));
        let mut has_connections = self.acceptor.paused_until().is_some();
        for event in &events {
            match event.data.u64() {
                LISTENER => has_connections = true,
                ARRIVAL => self.take_arrivals(deliver),
                data if data & PEER != 0 => deliver.peer(data as u32),
                data => self.on_event(data as u16, deliver),
            }
        }
        if !events.is_empty() && !self.poll.is_resting() {
            self.poll.expect_events();
        }
        let now = Instant::now();
        if has_connections {
            self.accept(now, deliver);
        }
        while let Some((number, since)) = self.acceptor.overdue(now) {
            let is_silent = |sender: &Sender| sender.since == since && !sender.greeted;
            if self.senders.get(number).is_some_and(is_silent) {
                self.remove(number);
            }
        }
        self.poll.set_paused_until(self.acceptor.paused_until());
        if self.fifo.repair_hint() {
            self.report(0, Corrupt("the hint of the first free slot of the FIFO").into(), deliver);
        }
        self.regions.retry_notices();
        self.send_regions(deliver);
        self.remove_ended();
        self.point();
    }

    fn accept(&mut self, now: Instant, deliver: &mut impl Deliver) {
        let (users, senders, epoll) = (self.config.users, &mut self.senders, &*self.epoll);
        let accepted = self.acceptor.accept(epoll, now, |link| {
            let found = link.credentials().ok();
            let sender = Sender::new(link, found.map_or(0, |found| found.process), now);
            if !found.is_some_and(|found| users.allow(found.user)) {
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
        match accepted {
            Ok(()) => self.acceptor.reported = false,
            Err(error) if !self.acceptor.reported => {
                self.acceptor.reported = true;
                deliver.broken(0, socket_error("accept", error));
            }
            // The error persists and was reported already.
            Err(_) => {}
        }
    }

    /// Adds the peers in this process that have connected.
    fn take_arrivals(&mut self, deliver: &mut impl Deliver) {
        let Some(entrance) = &self.entrance else { return };
        for link in entrance.take() {
            let sender = Sender::direct(link, Instant::now());
            let Some((number, sender)) = self.senders.add(sender) else { continue };
            let data = epoll::EventData::new_u64(SENDER | u64::from(number));
            if epoll::modify(&*self.epoll, sender, data, epoll::EventFlags::IN).is_err() {
                self.remove(number);
                continue;
            }
            // What it has sent already.
            self.on_event(number, deliver);
        }
    }

    /// Sends requested regions to senders whose sockets were full before.
    fn send_regions(&mut self, deliver: &mut impl Deliver) {
        if !std::mem::take(&mut self.has_requests) {
            return;
        }
        for number in self.senders.numbers_where(Sender::has_requests) {
            let Some(sender) = self.senders.get_mut(number) else { continue };
            match sender.send_regions(&self.regions) {
                Ok(()) => self.has_requests |= sender.has_requests(),
                Err(error) => self.report(number, error, deliver),
            }
        }
    }

    /// Handles the messages that a sender sent over its socket.
    pub(super) fn receive(&mut self, number: u16) -> Result<(), LinkError> {
        self.read(number, u32::MAX)
    }

    /// Handles up to `most` messages of a sender. One alone is taken for the wake-up that this
    /// process has asked for, and does not count as what the sender asks for.
    fn read(&mut self, number: u16, most: u32) -> Result<(), LinkError> {
        let Some(sender) = self.senders.get_mut(number) else { return Ok(()) };
        let mut receive = || sender.receive(&self.regions, most);
        let received = if most == 1 { receive() } else { self.poll.ask(receive) };
        let received = received.map(|count| self.poll.settle_wakes(count));
        self.has_requests |= sender.has_requests();
        if sender.is_direct && sender.ring.is_some() && !self.rings.contains(&number) {
            self.rings.push(number);
            self.poll.set_rings(self.rings.len());
            // It may have messages already.
            self.poll.set_found_nothing(false);
        }
        received
    }

    /// Handles an event of a sender's socket: a message, or its end.
    fn on_event(&mut self, number: u16, deliver: &mut impl Deliver) {
        let Some(sender) = self.senders.get_mut(number) else { return };
        let result = if sender.greeted {
            self.read(number, if self.poll.is_resting() { 1 } else { u32::MAX })
        } else {
            match sender.link.receive().map_err(|error| socket_error("recvmsg", error)) {
                Ok(Some(received)) => self.greet(number, received),
                Ok(None) => Ok(()),
                Err(LinkError::Ended) => {
                    sender.set_ended();
                    Ok(())
                }
                Err(error) => Err(error),
            }
        };
        if let Err(error) = result {
            self.report(number, error, deliver);
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
            self.remove(number);
            return Ok(());
        }
        let slots = self.config.fifo_slots as u64;
        let welcome =
            Message::Welcome { number: number.into(), slots, region_set: self.regions.number() };
        match sender.link.send(&welcome.encode(), self.inbox.descriptor().as_slice()) {
            Ok(true) => sender.greeted = true,
            // The peer does not read its socket or has closed it. It can connect again.
            _ => drop(self.remove(number)),
        }
        Ok(())
    }

    /// Removes a sender. Its socket may be open in a forked child as well, so that closing it here
    /// alone does not end its events.
    pub(super) fn remove(&mut self, number: u16) -> Option<Sender> {
        let sender = self.senders.remove(number)?;
        let _ = epoll::delete(&*self.epoll, &sender);
        Some(sender)
    }

    /// Removes senders that have ended, once their messages were received.
    fn remove_ended(&mut self) {
        for number in self.senders.numbers_where(|sender| sender.ended) {
            let done = self.senders.ring_mut(number).is_none_or(|ring| ring.peek().is_none());
            // The FIFO may still contain the announcement of the ring.
            let announced = self.rings.contains(&number)
                || self.senders.get(number).is_none_or(|sender| sender.ring.is_none());
            if done && (announced || matches!(self.fifo.peek(|_| false), Head::Empty)) {
                self.remove(number);
                self.rings.retain(|ring| *ring != number);
            }
        }
    }
}
