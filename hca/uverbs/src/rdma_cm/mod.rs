//! The kernel's part of rdma_cm: `/dev/infiniband/rdma_cm`, through which librdmacm connects queue
//! pairs by IP addresses.
//!
//! Programs write [commands](command) to the file and read their events by one of these. The
//! [state] of their identifiers and [connections](link) knows no device; a thread passes it the
//! datagrams of the devices' queue pairs 1 and the time. The messages on the wire are those of IBTA
//! chapter 12, as the kernel's own managers exchange them.

mod abi;
mod address;
mod command;
mod connect;
mod directory;
#[cfg(test)]
mod fuzz;
mod life;
mod link;
mod message;
mod multicast;
mod options;
mod query;
mod receive;
mod signal;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barewire_hca::Management;

use crate::adapter::Adapter;
use crate::config::Link;
use crate::errno::Errno;
use crate::explain;
use crate::method::{active_mtu, lid};
use crate::private::Private;
use crate::process;
use crate::signals::Blocked;
use directory::Found;
use life::Life;
use signal::Signal;
use state::{InfiniBand, Port, State};

pub(crate) use command::{LONGEST, Outcome};

/// `RDMA_UDP_QKEY`: the Q_Key of services for datagrams.
const UDP_QKEY: u32 = 0x0123_4567;
/// Longest sleep of the thread.
const SLEEP: Duration = Duration::from_mins(1);

/// A device with its datagrams.
#[derive(Debug)]
struct Device {
    adapter: Arc<Adapter>,
    management: Arc<Management>,
}

/// The connection manager of a process.
#[derive(Debug)]
pub(crate) struct Manager {
    state: Mutex<State>,
    /// All devices, once a program has used an address.
    devices: Mutex<Vec<Device>>,
    /// Held while the devices are opened.
    opening: Mutex<()>,
    /// The names of listeners, by their service.
    names: Mutex<BTreeMap<u64, Private<UnixListener>>>,
    /// Streams to the processes of peers.
    life: Life,
    /// Ends the thread's sleep.
    wake: Signal,
    woken: OwnedFd,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Channel {
    manager: Arc<Manager>,
    number: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Manager {
    fn new() -> Result<Self, Errno> {
        let (woken, wake) = Signal::new(libc::O_CLOEXEC | libc::O_NONBLOCK)?;
        Ok(Self {
            state: Mutex::new(State::new()),
            devices: Mutex::default(),
            opening: Mutex::default(),
            names: Mutex::default(),
            life: Life::default(),
            wake,
            woken,
        })
    }

    /// Creates the manager and its thread.
    pub(crate) fn start() -> Result<Arc<Self>, Errno> {
        let manager = Arc::new(Self::new()?);
        let blocked = Blocked::all();
        let own = Arc::clone(&manager);
        let thread = std::thread::Builder::new().name("barewire-cm".to_owned());
        thread.spawn(move || own.run()).map_err(|_| Errno(libc::EAGAIN))?;
        drop(blocked);
        Ok(manager)
    }

    /// Opens the file. Returns the program's descriptor, which is readable while there are events.
    pub(crate) fn open(self: &Arc<Self>, flags: i32) -> Result<(OwnedFd, Channel), Errno> {
        let (descriptor, signal) = Signal::new(flags)?;
        let number = lock(&self.state).open(signal);
        Ok((descriptor, Channel { manager: Arc::clone(self), number }))
    }

    /// Works on the state, sends what is to be sent, and prints what is to be printed.
    fn with<R>(&self, work: impl FnOnce(&mut State, Instant) -> R) -> R {
        let mut state = lock(&self.state);
        let result = work(&mut state, Instant::now());
        let packets = std::mem::take(&mut state.outbox);
        let explanations = std::mem::take(&mut state.explanations);
        let sent = !packets.is_empty();
        for packet in packets {
            let Some(port) = state.ports.get(packet.port) else { continue };
            let devices = lock(&self.devices);
            if let Some(device) = devices.get(port.device) {
                let device = &device.adapter.device;
                // A lost datagram is repeated.
                device.send_management(port.number, packet.to, &packet.bytes);
            }
        }
        drop(state);
        if sent {
            // There may be an earlier deadline.
            self.wake.set();
        }
        for line in explanations {
            explain::tell_now(&line);
        }
        result
    }

    /// Opens all devices: a listener at any address is reached by each of them.
    fn open_devices(&self) -> Result<(), Errno> {
        let opening = lock(&self.opening);
        if !lock(&self.devices).is_empty() {
            return Ok(());
        }
        let (mut opened, mut ports) = (Vec::new(), Vec::new());
        for number in 0..process::get().devices() {
            let adapter = process::get().adapter_or_open(number)?;
            let management = adapter.device.management().map_err(|_| Errno::IO)?;
            for port in 1..=adapter.ports {
                let infiniband = match adapter.link {
                    Link::Roce => None,
                    Link::InfiniBand => Some(InfiniBand {
                        lid: lid(&adapter, port)?,
                        global_route: adapter.device.requirements().global_route,
                    }),
                };
                // Programs also use the address that the GID contains: as if the port had an IPoIB
                // interface with this address.
                ports.push(Port {
                    device: number,
                    number: port,
                    guid: adapter.guid()?,
                    address: canonical(adapter.own_gid(port)?),
                    mtu: active_mtu(&adapter)? as u8,
                    infiniband,
                });
            }
            opened.push(Device { adapter, management });
        }
        self.life.show(ports.iter().map(|port| port.address));
        // Another call that finds the devices finds their ports, too.
        lock(&self.state).ports = ports;
        *lock(&self.devices) = opened;
        drop(opening);
        self.wake.set();
        Ok(())
    }

    /// Gives an identifier that is bound to any address its name, if it listens or may do so.
    fn enter_name(&self, id: u32) {
        let state = lock(&self.state);
        let service =
            state.ids.get(&id).filter(|id| id.only.is_none()).and_then(state::Id::service);
        drop(state);
        let Some(service) = service else { return };
        let mut names = lock(&self.names);
        if !names.contains_key(&service)
            && let Some(listener) = directory::enter(service)
        {
            names.insert(service, listener);
            self.wake.set();
        }
    }

    /// Removes the names of services that have no listener any more.
    fn forget_names(&self) {
        let state = lock(&self.state);
        lock(&self.names).retain(|&service, _| state.is_named(service, Instant::now()));
    }

    /// Returns the device by which the listener to a service is reached.
    fn listener_of(&self, service: u64) -> Option<Found> {
        let state = lock(&self.state);
        let listener = state.listener_at_any(service);
        let source = listener.and_then(|id| id.source);
        let mut ports = state.ports.iter().map(|port| port.address);
        let address = ports.find(|&port| {
            let listens_to =
                |own: address::Address| address::same_family(port, own.ip()) || own.ip().is_ipv6();
            source.is_none_or(listens_to)
        })?;
        Some(Found { address, listens: listener.is_some() })
    }

    /// Responds to those who look up the names of listeners.
    fn respond(&self) {
        let services: Vec<u64> = lock(&self.names).keys().copied().collect();
        for service in services {
            let found = self.listener_of(service);
            if let Some(listener) = lock(&self.names).get(&service) {
                directory::respond(listener, found);
            }
        }
    }

    /// Ends the connections to processes that have ended.
    fn end_connections(&self) {
        let peers = lock(&self.state).peers();
        for peer in self.life.watch(&peers) {
            self.with(|state, now| state.peer_ended(peer, now));
        }
    }

    /// Serves devices, deadlines and names until the process ends.
    fn run(&self) {
        loop {
            // Before anything is read, so that nothing is missed.
            self.wake.clear();
            let managements: Vec<(usize, Arc<Management>)> = lock(&self.devices)
                .iter()
                .map(|device| Arc::clone(&device.management))
                .enumerate()
                .collect();
            for (device, management) in &managements {
                while let Some(datagram) = management.next_datagram() {
                    self.with(|state, now| {
                        let port = state.ports.iter().position(|port| {
                            port.device == *device && port.number == datagram.port
                        });
                        if let Some(port) = port {
                            state.receive(port, datagram.source, &datagram.bytes, now);
                        }
                    });
                }
            }
            self.with(State::expire);
            self.end_connections();
            self.forget_names();
            self.respond();
            let mut descriptors = self.life.descriptors();
            let names = lock(&self.names);
            let own = managements.iter().map(|(_, it)| it.as_fd().as_raw_fd());
            let own = own.chain(names.values().map(|it| it.as_raw_fd()));
            let own = own.chain([self.woken.as_raw_fd()]);
            descriptors.extend(own.map(|fd| (fd, libc::POLLIN)));
            drop(names);
            let deadline = lock(&self.state).deadline();
            let time = deadline
                .map_or(SLEEP, |at| at.saturating_duration_since(Instant::now()).min(SLEEP));
            sleep(&descriptors, time);
        }
    }
}

impl Channel {
    fn with<R>(&self, work: impl FnOnce(&mut State, Instant) -> R) -> R {
        self.manager.with(work)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.with(|state, now| state.close(self.number, now));
        self.manager.forget_names();
    }
}

/// Returns the IP address that a GID contains.
fn canonical(gid: [u8; 16]) -> IpAddr {
    IpAddr::from(gid).to_canonical()
}

/// Sleeps until a descriptor has one of its events, or `time` has passed.
fn sleep(descriptors: &[(RawFd, i16)], time: Duration) {
    let polled = descriptors.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 });
    let mut polled: Vec<libc::pollfd> = polled.collect();
    // Rounded up, so that the deadline has passed afterwards.
    let milliseconds = time.as_millis().saturating_add(1).min(i32::MAX as u128) as i32;
    // SAFETY: the list is live and has this length.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, milliseconds) };
}
