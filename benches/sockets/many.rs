//! Many connections of `tcp` between two interfaces, some of them busy: one message at a time, over
//! each busy connection in turn.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Instant;

use barewire::{
    Domain, Endpoint, EndpointError, FlushMode, Interface, InterfaceConfig, PeerAddress, PostError,
    Posted, Worker,
};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::times::Times;
use crate::{DEADLINE, Outcome, Plan, WARM_UP, spin};

const ID: u8 = 1;

/// One of the two processes.
struct Process {
    worker: Worker,
    endpoints: Vec<Endpoint>,
    received: Rc<Cell<u64>>,
    failure: Rc<RefCell<Option<EndpointError>>>,
    _interface: Interface,
}

pub(crate) fn run(plan: &Plan, connections: u32, busy: u32) -> Outcome<()> {
    if !(1..=connections).contains(&busy) {
        return Err(format!("of {connections} connections {busy} cannot be busy").into());
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })?;
    let mut link = link(plan)?;
    let mut process = Process::connect(&mut link, connections)?;
    let busy = busy as usize;
    let rounds = WARM_UP + plan.rounds;
    let mut times = Times::new(plan.rounds);
    // Messages that arrived while the connections were established.
    let before = process.received.get();
    for round in 0..rounds {
        let at = round as usize % busy;
        let wanted = before + u64::from(round) + 1;
        if plan.listens {
            process.wait_for(wanted)?;
            process.send(at)?;
        } else {
            let start = Instant::now();
            process.send(at)?;
            process.wait_for(wanted)?;
            if round >= WARM_UP {
                times.add(start);
            }
        }
    }
    process.agree(&mut link)?;
    if !plan.listens {
        times.tell();
    }
    Ok(())
}

/// The connection over which the two processes exchange addresses.
fn link(plan: &Plan) -> Outcome<TcpStream> {
    let address = (Ipv4Addr::LOCALHOST, plan.port);
    let link = if plan.listens {
        TcpListener::bind(address)?.accept()?.0
    } else {
        TcpStream::connect(address)?
    };
    link.set_read_timeout(Some(DEADLINE))?;
    Ok(link)
}

/// Sends the length of `bytes`, and `bytes`.
fn say(link: &mut TcpStream, bytes: &[u8]) -> Outcome<()> {
    link.write_all(&(bytes.len() as u32).to_le_bytes())?;
    Ok(link.write_all(bytes)?)
}

fn receive(link: &mut TcpStream) -> Outcome<Vec<u8>> {
    let mut length = [0; 4];
    link.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    link.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Process {
    /// Connects this many endpoints to those of the other process, and sends a message over each,
    /// so that all connections are established.
    fn connect(link: &mut TcpStream, connections: u32) -> Outcome<Self> {
        let mut worker = Worker::new();
        let domain = Domain::open(&"tcp/lo".parse()?)?;
        let config = InterfaceConfig::default().max_endpoints(connections);
        let interface = Interface::open(&mut worker, &domain, &config)?;
        let endpoints: Vec<Endpoint> =
            (0..connections).map(|_| Endpoint::new(&interface)).collect::<Result<_, _>>()?;
        let received = Rc::new(Cell::new(0));
        let count = Rc::clone(&received);
        interface.set_handler(ID, move |_| count.set(count.get() + 1))?;
        let failure = Rc::<RefCell<Option<EndpointError>>>::default();
        let failed = Rc::clone(&failure);
        interface.set_error_handler(move |error| *failed.borrow_mut() = Some(error.clone()));
        let own: Vec<Vec<u8>> =
            endpoints.iter().map(|endpoint| endpoint.address().to_bytes()).collect();
        say(link, &own.concat())?;
        let theirs = receive(link)?;
        let each = own.first().map_or(1, Vec::len);
        for (endpoint, address) in endpoints.iter().zip(theirs.chunks(each)) {
            endpoint.connect(&PeerAddress::from_bytes(address)?)?;
        }
        let mut this = Self { worker, endpoints, received, failure, _interface: interface };
        for at in 0..connections as usize {
            this.send(at)?;
        }
        this.wait_for(connections.into())?;
        this.agree(link)?;
        Ok(this)
    }

    /// Waits until both processes have called this function and received all messages.
    fn agree(&mut self, link: &mut TcpStream) -> Outcome<()> {
        let Self { worker, endpoints, .. } = self;
        for endpoint in endpoints {
            spin("a flush", || {
                worker.progress();
                Ok(endpoint.flush(FlushMode::Local, None)? == Posted::Done)
            })?;
        }
        link.write_all(b"!")?;
        link.set_nonblocking(true)?;
        spin("the other process", || {
            self.worker.progress();
            match link.read_exact(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
                read => Ok(read.map(|()| true)?),
            }
        })?;
        Ok(link.set_nonblocking(false)?)
    }

    fn send(&mut self, at: usize) -> Outcome<()> {
        let Self { worker, endpoints, .. } = self;
        // 8 bytes, and 8 of the header.
        spin("a send", || match endpoints[at].am_short(ID, 7, &[]) {
            Ok(()) => Ok(true),
            Err(PostError::NoResource) => {
                worker.progress();
                Ok(false)
            }
            Err(error) => Err(error.into()),
        })
    }

    fn wait_for(&mut self, wanted: u64) -> Outcome<()> {
        let Self { worker, received, failure, .. } = self;
        spin("a message", || {
            worker.progress();
            if let Some(error) = failure.take() {
                return Err(error.into());
            }
            Ok(received.get() >= wanted)
        })
    }
}
