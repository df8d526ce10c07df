//! How two ends connect, and why they do not.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use barewire_channel::{
    Config, Connector, HANDLE_BYTES, Handle, HandshakeError, Key, Listener, Rail, Rails,
    RailsError, Receiver, Sender, Usage,
};
use barewire_tcp::connector::Connector as TcpConnector;
use barewire_tcp::listener::Limits;

use crate::pair::{DEADLINE, Pair, Set, config, connect, contexts, rails};

fn one() -> Rails {
    rails(&contexts(Set::good(1)), 1)
}

fn listen(rails: &Rails, key: &Key, config: &Config) -> Listener {
    Listener::bind(rails, "127.0.0.1:0".parse().unwrap(), key, config).unwrap()
}

/// Polls both until the connector has a result.
fn until_connected(
    connector: &mut Connector,
    listener: &mut Listener,
) -> Result<Sender, HandshakeError> {
    let start = Instant::now();
    loop {
        let _ = listener.accept();
        if let Some(result) = connector.poll().transpose() {
            return result;
        }
        assert!(start.elapsed() < DEADLINE, "connecting took too long");
        std::thread::yield_now();
    }
}

#[test]
fn a_listener_accepts_several_and_handles_cross_as_bytes() {
    let (rails, key) = (one(), Key::generate().unwrap());
    let mut listener = listen(&rails, &key, &config());
    let bytes = listener.handle().to_bytes();
    const { assert!(HANDLE_BYTES <= 128) };
    let handle = Handle::from_bytes(&bytes).unwrap();
    assert_eq!(handle, listener.handle());
    let start = |_| Connector::start(&rails, &handle, &key, &config()).unwrap();
    let mut connectors: Vec<_> = (0..5).map(start).collect();
    let (mut senders, mut receivers): (Vec<Sender>, Vec<Receiver>) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    while senders.len() < 5 || receivers.len() < 5 {
        connectors.retain_mut(|connector| match connector.poll().unwrap() {
            Some(sender) => {
                senders.push(sender);
                false
            }
            None => true,
        });
        receivers.extend(listener.accept().unwrap());
        assert!(begun.elapsed() < DEADLINE);
    }
    // Each receiver has one of the senders: all messages arrive, once each.
    let source = rails.allocate(64, Usage::Send).unwrap();
    let target = rails.allocate(64 * 5, Usage::Receive).unwrap();
    let receiving: Vec<_> = receivers
        .iter_mut()
        .enumerate()
        .map(|(at, receiver)| receiver.receive(&target, at * 64, 64, 0).unwrap().unwrap())
        .collect();
    for (at, sender) in senders.iter_mut().enumerate() {
        source.write(0, &[at as u8 + 1; 64]).unwrap();
        let request = crate::pair::wait("a buffer", || sender.send(&source, 0, 64, 0)).unwrap();
        crate::pair::wait("the send", || sender.test(request)).unwrap();
    }
    for (receiver, request) in receivers.iter_mut().zip(receiving) {
        crate::pair::wait("the receive", || receiver.test(request)).unwrap();
    }
    let mut bytes = vec![0; 64 * 5];
    target.read(0, &mut bytes).unwrap();
    let mut firsts: Vec<_> = bytes.chunks(64).map(|chunk| chunk[0]).collect();
    firsts.sort_unstable();
    assert_eq!(firsts, [1, 2, 3, 4, 5]);
}

#[test]
fn ends_with_different_settings_agree_on_the_smaller() {
    let set = rails(&contexts(Set::good(2)), 2);
    let single = one();
    let ours = config().pairs(4).max_message(5000);
    let theirs = config().pairs(3).max_message(7000);
    let (sender, receiver) = connect(&set, &set, &ours, &theirs);
    let (sender, receiver) = (sender.unwrap(), receiver.unwrap());
    assert_eq!((sender.limit(), receiver.limit()), (5000, 5000));
    drop((sender, receiver));
    // Two rails here, one there, and the other way round.
    for (from, to) in [(&set, &single), (&single, &set)] {
        let mut pair = Pair::between(from.clone(), to.clone(), &config().whole(0));
        assert_eq!((pair.sender.rails(), pair.receiver.rails()), (1, 1));
        assert_eq!(pair.message(3000, 4096), (3000, 3000));
    }
}

/// Rails `a` and `b` of this end and `c` and `d` of the other: `b` reaches none of them.
fn apart() -> (Rails, Rails) {
    use barewire_channel::mlx5::hca::Config as Device;
    let soft = |address: &str| {
        crate::pair::soft(Device::default().address(Some(address.parse().unwrap())))
    };
    let rail =
        |name: &str, address: String| Rail::new(name, &soft(&address)).unwrap().subnet_bits(120);
    let set = |rails| Rails::new(rails).unwrap();
    let base = std::process::id() % 200;
    let address = |net: u32, host: u32| format!("127.{}.{net}.{host}", 40 + base);
    let from = vec![rail("a", address(1, 1)), rail("b", address(2, 1))];
    let to = vec![rail("c", address(3, 1)), rail("d", address(1, 2))];
    (set(from), set(to))
}

#[test]
fn rails_that_do_not_reach_each_other_are_refused_at_both_ends() {
    let (from, to) = apart();
    let (sender, receiver) = connect(&from, &to, &config(), &config());
    let words = [sender.err().unwrap().to_string(), receiver.err().unwrap().to_string()];
    for words in words {
        assert!(words.contains("only 1 of 2 rails"), "{words}");
        for name in ["a (", "b (", "c (", "d ("] {
            assert!(words.contains(name), "{words}");
        }
    }
    // One end alone cannot allow it.
    let (sender, receiver) = connect(&from, &to, &config().partial(true), &config());
    assert!(sender.is_err() && receiver.is_err());
    let mut pair = Pair::between(from, to, &config().partial(true).whole(0));
    assert_eq!(pair.sender.rails(), 1);
    assert_eq!(pair.message(3000, 4096), (3000, 3000));
}

#[test]
fn wrong_sets_and_settings_are_refused() {
    let contexts = contexts(Set::good(1));
    let rail = |name: &str| Rail::new(name, &contexts[0]);
    assert!(matches!(Rails::new(Vec::new()), Err(RailsError::Count(0))));
    let nine = (0..9).map(|at| rail(&at.to_string()).unwrap()).collect();
    assert!(matches!(Rails::new(nine), Err(RailsError::Count(9))));
    let twice = vec![rail("a").unwrap(), rail("a").unwrap()];
    assert!(matches!(Rails::new(twice), Err(RailsError::Name(_))));
    assert!(matches!(rail(""), Err(RailsError::LongName(_))));
    assert!(matches!(rail(&"n".repeat(65)), Err(RailsError::LongName(_))));
    let set = Rails::new(vec![rail("a").unwrap()]).unwrap();
    assert!(set.allocate(0, Usage::Send).is_err());
    assert!(set.allocate(usize::MAX, Usage::Send).is_err());
    let key = Key::generate().unwrap();
    for pairs in [0, 9] {
        let config = config().pairs(pairs);
        let address = "127.0.0.1:0".parse().unwrap();
        let error = Listener::bind(&set, address, &key, &config).err().unwrap();
        assert!(matches!(error, HandshakeError::Config(_)), "{error}");
    }
}

#[test]
fn strangers_do_not_disturb_a_listener() {
    let (rails, key) = (one(), Key::generate().unwrap());
    let mut listener = listen(&rails, &key, &config());
    let handle = listener.handle();
    let mut stranger = TcpStream::connect(handle.address()).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: nobody who knows the key\r\n\r\n").unwrap();
    let _silent = TcpStream::connect(handle.address()).unwrap();
    let other_key = Key::generate().unwrap();
    let mut wrong = Connector::start(&rails, &handle, &other_key, &config()).unwrap();
    let error = until_connected(&mut wrong, &mut listener).err().unwrap();
    assert!(matches!(error, HandshakeError::Connect { .. }), "{error}");
    assert!(matches!(wrong.poll(), Err(HandshakeError::Finished)));
    // The right key, and the token of another listener.
    let mut bytes = handle.to_bytes();
    bytes[40] ^= 1;
    let stale = Handle::from_bytes(&bytes).unwrap();
    let mut stale = Connector::start(&rails, &stale, &key, &config()).unwrap();
    let error = until_connected(&mut stale, &mut listener).err().unwrap();
    assert!(error.to_string().contains("no such endpoint"), "{error}");
    let mut right = Connector::start(&rails, &handle, &key, &config()).unwrap();
    drop(until_connected(&mut right, &mut listener).unwrap());
    assert!(listener.refused() > 0);
}

#[test]
fn a_listener_gives_up_on_peers_that_stop_in_any_state() {
    const PEERS: usize = 48;
    let (rails, key) = (one(), Key::generate().unwrap());
    let mut listener = listen(&rails, &key, &config().timeout(Duration::from_millis(400)));
    let start = |_| Connector::start(&rails, &listener.handle(), &key, &config()).unwrap();
    let mut connectors: Vec<_> = (0..PEERS).map(start).collect();
    let (mut accepted, mut timed_out) = (Vec::new(), 0);
    let begun = Instant::now();
    let mut round = 0;
    // Peer k is polled k times, in the same rounds.
    while accepted.len() as u64 + timed_out + listener.refused() < PEERS as u64 {
        for connector in connectors.iter_mut().skip(round + 1) {
            match connector.poll() {
                Ok(_) | Err(HandshakeError::Finished) => {}
                Err(error) => panic!("peer of round {round}: {error}"),
            }
        }
        round += 1;
        match listener.accept() {
            Ok(None) => {}
            Ok(Some(receiver)) => accepted.push(receiver),
            Err(error) => {
                assert!(matches!(error, HandshakeError::TimedOut { .. }), "{error}");
                timed_out += 1;
            }
        }
        assert!(
            begun.elapsed() < DEADLINE,
            "{} {timed_out} {}",
            accepted.len(),
            listener.refused()
        );
        std::thread::yield_now();
    }
    // Peer 0 was never polled.
    assert!(accepted.len() < PEERS);
}

#[test]
fn a_connector_gives_up_on_listeners_that_stop_in_any_state() {
    let (rails, key) = (one(), Key::generate().unwrap());
    let short = config().timeout(Duration::from_millis(400));
    let mut ends: Vec<_> = (0..32)
        .map(|calls| {
            let listener = listen(&rails, &key, &config());
            let connector = Connector::start(&rails, &listener.handle(), &key, &short).unwrap();
            (calls, listener, Some(connector), None)
        })
        .collect();
    let (mut connected, mut failed) = (Vec::new(), 0);
    let begun = Instant::now();
    while connected.len() + failed < ends.len() {
        for (calls, listener, connector, receiver) in &mut ends {
            if *calls > 0 {
                *calls -= 1;
                if let Ok(Some(accepted)) = listener.accept() {
                    *receiver = Some(accepted);
                }
            }
            match connector.as_mut().map(Connector::poll) {
                None | Some(Ok(None)) => {}
                Some(Ok(Some(sender))) => {
                    connected.push(sender);
                    *connector = None;
                }
                Some(Err(error)) => {
                    let words = error.to_string();
                    assert!(words.contains("within"), "{words}");
                    failed += 1;
                    *connector = None;
                }
            }
        }
        assert!(begun.elapsed() < DEADLINE, "{} {failed}", connected.len());
        std::thread::yield_now();
    }
    // The first listener was never polled.
    assert!(failed > 0);
}

#[test]
fn nobody_listens_there() {
    let (rails, key) = (one(), Key::generate().unwrap());
    let handle = listen(&rails, &key, &config()).handle();
    let mut connector = Connector::start(&rails, &handle, &key, &config()).unwrap();
    let begun = Instant::now();
    let error = loop {
        match connector.poll() {
            Ok(None) => assert!(begun.elapsed() < DEADLINE),
            Ok(Some(_)) => panic!("connected"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("no process listens"), "{error}");
}

/// Connections of a member of the job that say nothing take all that a listener has.
#[test]
fn silent_connections_make_room_for_a_channel() {
    let (rails, key) = (one(), Key::generate().unwrap());
    let mut listener = listen(&rails, &key, &config());
    let claim = crate::floods::honest_offer(&listener.handle(), &key).0;
    let limits = Limits { protected: false, ..Limits::default() };
    let mut silent = Vec::new();
    let begun = Instant::now();
    while silent.len() < 256 {
        let address = listener.handle().address();
        let mut connecting =
            TcpConnector::start(address, None, &key, claim, DEADLINE, limits).unwrap();
        let socket = loop {
            assert!(listener.accept().unwrap().is_none());
            if let Some(socket) = connecting.advance(Instant::now()).unwrap() {
                break socket;
            }
            assert!(begun.elapsed() < DEADLINE, "{} connections", silent.len());
        };
        silent.push(socket);
    }
    // The time that each of them has is over.
    std::thread::sleep(Duration::from_millis(300));
    let mut connector = Connector::start(&rails, &listener.handle(), &key, &config()).unwrap();
    assert!(until_connected(&mut connector, &mut listener).is_ok());
    drop(silent);
}
