//! Connects by IP address with another program that uses rdma_cm, and exchanges a message with it
//! through this driver's own queues. The peers of this example are itself, and `rdma_server` and
//! `rdma_client` of librdmacm (Debian: rdmacm-utils), which send 16 bytes each.
//!
//! ```text
//! cargo build -p barewire-mlx5 --features rdma-cm --example rdma_cm
//! barewire hca run -- target/debug/examples/rdma_cm serve 0.0.0.0:7471 &
//! barewire hca run -- rdma_client -s 127.0.0.1 -p 7471
//! ```
//!
//! With an adapter, both run without `barewire hca run`.

use std::error::Error;
use std::time::{Duration, Instant};

use barewire_mlx5::rdma_cm::{Connection, ConnectionEvent, Connector, Listener, Offer};
use barewire_mlx5::request::{Inline, Send};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, ControlFlags, Polled, ProtectionDomain,
    RcConfig, RcQueuePair, Uar, setup,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TIMEOUT: Duration = Duration::from_secs(30);
const MESSAGE: usize = 16;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => serve(address),
        ["connect", address] => connect(address),
        _ => Err("usage: rdma_cm serve ADDRESS:PORT | connect ADDRESS:PORT".into()),
    }
}

// ANCHOR: serve
/// Serves one client.
fn serve(address: &str) -> Result<()> {
    let mut listener = Listener::bind(address.parse()?)?;
    println!("listening on {}", listener.address());
    let request = listener.next_request(TIMEOUT)?.ok_or("no client within 30 s")?;
    println!("a request of {}: {}", request.peer(), text(request.private_data()));
    let mut side = Side::open(request.device(), request.port())?;
    let offer = Offer { private_data: b"from the server", ..Offer::default() };
    let mut connection = request.accept(&mut side.pair, &offer, TIMEOUT)?;
    println!("connected to {}", connection.peer());
    side.receive(&mut connection)?;
    side.send(&mut connection, *b"message of serve")?;
    // The client disconnects when it has the message.
    side.end(&mut connection)
}
// ANCHOR_END: serve

fn connect(address: &str) -> Result<()> {
    let connector = Connector::resolve(address.parse()?, TIMEOUT)?;
    let mut side = Side::open(connector.device(), connector.port())?;
    let offer = Offer { private_data: b"from the client", ..Offer::default() };
    let mut connection = connector.connect(&mut side.pair, &offer, TIMEOUT)?;
    println!("connected to {}: {}", connection.peer(), text(connection.private_data()));
    side.send(&mut connection, *b"message of conn.")?;
    side.receive(&mut connection)?;
    connection.disconnect()?;
    side.end(&mut connection)
}

/// A queue pair with a buffer for a message, posted before it is connected.
struct Side {
    pair: RcQueuePair,
    completions: CompletionQueue,
    buffer: Buffer,
    received: bool,
    disconnected: bool,
}

impl Side {
    fn open(device: &str, port: u8) -> Result<Self> {
        let context = setup::open(device, port, None)?.context;
        let domain = ProtectionDomain::allocate(&context)?;
        let uar = Uar::allocate(&context)?;
        let completions = CompletionQueue::create(&context, &uar, 512)?;
        let config = RcConfig::default();
        let mut pair = RcQueuePair::create(&domain, &uar, &completions, &completions, &config)?;
        let buffer = Buffer::allocate(&domain, MESSAGE, Access::LOCAL_WRITE)?;
        let segment = buffer.region().segment(0, MESSAGE).ok_or("outside the buffer")?;
        if !pair.receive.push(segment) {
            return Err("the receive queue is full".into());
        }
        pair.receive.publish();
        Ok(Self { pair, completions, buffer, received: false, disconnected: false })
    }

    fn send(&mut self, connection: &mut Connection, message: [u8; MESSAGE]) -> Result<()> {
        self.pair.send.post(Send(Inline(&message)), ControlFlags::COMPLETION)?;
        self.progress(connection, "acknowledgement", |side| side.pair.send.is_idle())
    }

    fn receive(&mut self, connection: &mut Connection) -> Result<()> {
        self.progress(connection, "message", |side| side.received)?;
        let mut message = [0; MESSAGE];
        self.buffer.read(0, &mut message)?;
        println!("received: {}", text(&message));
        Ok(())
    }

    /// Polls until `done`.
    fn progress(
        &mut self,
        connection: &mut Connection,
        what: &str,
        done: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !done(self) {
            let Some(completion) = self.completions.poll().map(Polled::completion) else {
                // What the peer sent before it disconnected is complete by then.
                if self.disconnected {
                    return Err(format!("no {what}: {} has disconnected", connection.peer()).into());
                }
                if Instant::now() > deadline {
                    return Err(format!("no {what} of {} within 30 s", connection.peer()).into());
                }
                // A server with many connections would wait for their descriptors instead.
                self.disconnected = connection.next_event(Duration::ZERO)?.is_some();
                std::thread::yield_now(); // the software HCA is a thread
                continue;
            };
            match completion.kind {
                CompletionKind::Receive => self.received = true,
                CompletionKind::Send => self.pair.send.reap(completion.wqe_counter),
                CompletionKind::SendError(failure) | CompletionKind::ReceiveError(failure) => {
                    return Err(format!("no {what} of {}: {failure}", connection.peer()).into());
                }
                other => return Err(format!("unexpected completion: {other:?}").into()),
            }
        }
        Ok(())
    }

    /// Waits for the end of the connection, which the queue pair does not notice by itself.
    fn end(&mut self, connection: &mut Connection) -> Result<()> {
        if !self.disconnected {
            match connection.next_event(TIMEOUT)? {
                Some(ConnectionEvent::Disconnected) => (),
                other => return Err(format!("{other:?} instead of the end").into()),
            }
        }
        self.pair.to_error()?;
        println!("disconnected");
        Ok(())
    }
}

/// Private data and messages, up to the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
