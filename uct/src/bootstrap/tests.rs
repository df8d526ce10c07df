//! Peers that have the key, but do not keep to the protocol.

use barewire_tcp::frames::Stream;
use barewire_tcp::socket::Socket;

use super::*;
use crate::tests::{Context, Rig};

/// Longer than a timer counts between two calls.
const STEP: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_mins(1);

fn claim(peer: Contact) -> Claim {
    Claim {
        purpose: Purpose::Control,
        service: peer.number,
        endpoint: 0,
        from_service: 0,
        from_endpoint: 0,
    }
}

/// Connects to an interface, as a peer with the key.
fn connect(to: &Bootstrap, iface: &Iface) -> io::Result<Socket> {
    let claim = claim(to.contact);
    let mut connector =
        Connector::start(to.contact.address, None, &to.key, claim, DEADLINE, to.limits)?;
    loop {
        to.work_at(iface, Instant::now());
        if let Some(socket) = connector.advance(Instant::now()).map_err(io::Error::other)? {
            return Ok(socket);
        }
    }
}

fn opened(rig: &Rig, context: &Context) -> Bootstrap {
    // SAFETY: open handles of the rig; the context outlives the bootstrap.
    unsafe {
        (*rig.worker).context = context.0;
        Bootstrap::with_key(&*rig.iface, rig.worker, Key::generate().unwrap()).unwrap()
    }
}

#[test]
fn a_silent_peer_is_disconnected() {
    let Some(rig) = Rig::over(c"tcp", c"lo") else { return };
    let context = Context::polled();
    let bootstrap = opened(&rig, &context);
    // SAFETY: an open handle.
    let iface = unsafe { &*rig.iface };
    let mut stream = Stream::new(connect(&bootstrap, iface).unwrap(), 1);
    assert!(bootstrap.links.borrow().values().all(Link::is_accepted));
    let mut now = Instant::now();
    for _ in 0..15 {
        now += STEP;
        assert!(bootstrap.work_at(iface, now), "calls go on until the deadline");
        assert_eq!(bootstrap.links.borrow().len(), 1);
    }
    for _ in 0..2 {
        now += STEP;
        bootstrap.work_at(iface, now);
    }
    assert_eq!(bootstrap.links.borrow().len(), 0);
    let end = loop {
        match stream.try_receive() {
            Ok(None) => std::thread::yield_now(),
            other => break other,
        }
    };
    assert!(end.is_err(), "{end:?}");
    bootstrap.close();
}

#[test]
fn links_of_peers_are_limited() {
    let Some(rig) = Rig::over(c"tcp", c"lo") else { return };
    let context = Context::polled();
    let bootstrap = Bootstrap { most: 2, ..opened(&rig, &context) };
    // SAFETY: an open handle.
    let iface = unsafe { &*rig.iface };
    let kept = [connect(&bootstrap, iface).unwrap(), connect(&bootstrap, iface).unwrap()];
    let refused = connect(&bootstrap, iface).unwrap_err().to_string();
    assert!(refused.contains("as many connections"), "{refused}");
    drop(kept);
    while !bootstrap.links.borrow().is_empty() {
        bootstrap.work_at(iface, Instant::now());
    }
    let again = connect(&bootstrap, iface).unwrap();
    drop(again);
    bootstrap.close();
}

/// The peer accepts, but never sends the address of its endpoint: the endpoint fails.
#[test]
fn an_endpoint_does_not_wait_for_a_silent_listener() {
    let Some(rig) = Rig::over(c"tcp", c"lo") else { return };
    let context = Context::polled();
    let bootstrap = opened(&rig, &context);
    // SAFETY: an open handle.
    let iface = unsafe { &*rig.iface };
    let ep = NonNull::new(rig.endpoint(None)).unwrap();
    let address: std::net::IpAddr = Ipv4Addr::LOCALHOST.into();
    let mut listener = Listener::open(address, bootstrap.key.clone(), bootstrap.limits).unwrap();
    let contact = Contact { number: 7, address: listener.address() };
    bootstrap.dial(ep, contact).unwrap();
    let (mut accepted, limit) = (Vec::new(), Instant::now() + DEADLINE);
    let asks = || bootstrap.links.borrow().values().any(|link| matches!(link, Link::Asking { .. }));
    while !asks() {
        let mut peers = Vec::new();
        listener.work(Instant::now(), &mut peers);
        accepted.extend(peers.into_iter().map(|peer| peer.welcome().unwrap()));
        bootstrap.work_at(iface, Instant::now());
        assert!(Instant::now() < limit);
    }
    let mut now = Instant::now();
    for _ in 0..17 {
        assert_eq!(bootstrap.links.borrow().len(), 1);
        now += STEP;
        bootstrap.work_at(iface, now);
        if bootstrap.links.borrow().is_empty() {
            break;
        }
    }
    assert_eq!(bootstrap.links.borrow().len(), 0);
    bootstrap.close();
    // SAFETY: an open handle.
    unsafe { crate::dispatch::uct_ep_destroy(ep.as_ptr()) };
}
