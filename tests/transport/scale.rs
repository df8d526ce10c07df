//! Many endpoints of one interface: shares of the completion queue, and memory per endpoint.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use barewire::{FlushMode, InterfaceConfig, PostError, Posted, TransportId};
use barewire_hca as hca;

use super::allocator;
use super::support::{Pair, Side, collect, connect, device};

/// Opens further endpoints on both sides of the pair and connects them. The first is the pair's own.
fn endpoints(pair: &Pair, count: usize) -> Vec<(Side, Side)> {
    let mut all = vec![(pair.client.another_handle(), pair.server.another_handle())];
    while all.len() < count {
        let (client, server) = (pair.client.another(), pair.server.another());
        connect(&client, &server);
        all.push((client, server));
    }
    all
}

const ENDPOINTS: usize = 40;
const RING: u32 = 64;

/// Settings with which 1344 blocks can be outstanding, but 2560 fit the rings.
fn scarce() -> InterfaceConfig {
    InterfaceConfig::default()
        .send_ring(RING)
        .receive_ring(16)
        .max_endpoints(ENDPOINTS as u32)
        .min_rnr_timer(1)
}

/// Each endpoint can fill its ring while the others are idle, although not all have had room for it.
#[test]
fn idle_endpoints_give_their_shares_away() {
    let mut pair = Pair::stepped(&scarce());
    let inbox = collect(&pair.server.interface, 0);
    let all = endpoints(&pair, ENDPOINTS);
    let mut fewest = RING;
    for (client, _) in &all {
        let mut sent = 0;
        let mut fill = || {
            while client.endpoint.am_short(0, 0, &[]).is_ok() {
                sent += 1;
            }
            sent
        };
        fewest = fewest.min(fill());
        // The device does nothing meanwhile.
        for _ in 0..8 {
            pair.worker.progress();
            fill();
        }
        assert_eq!(sent, RING);
        while inbox.borrow().len() < sent as usize {
            pair.settle();
        }
        inbox.borrow_mut().clear();
        let client = client.endpoint.clone();
        while client.flush(FlushMode::Local, None) != Ok(Posted::Done) {
            pair.settle();
        }
    }
    assert_eq!(fewest, 8, "a share that was not taken by another");
}

/// All endpoints together neither lose nor reorder a message, and the completion queue does not
/// overrun.
#[test]
fn endpoints_share_a_completion_queue() {
    const MESSAGES: u32 = 400;
    for mut pair in Pair::rc(&scarce()) {
        let received = Rc::new(RefCell::new([0_u32; ENDPOINTS]));
        let seen = Rc::clone(&received);
        pair.server
            .interface
            .set_handler(0, move |message| {
                let data = message.data();
                let header = u64::from_le_bytes(data[..8].try_into().unwrap());
                let (from, number) = ((header >> 32) as usize, header as u32);
                let next = &mut seen.borrow_mut()[from];
                assert_eq!(number, *next, "message of endpoint {from}");
                assert_eq!(data.len(), 8 + header_length(header));
                *next += 1;
            })
            .unwrap();
        let all = endpoints(&pair, ENDPOINTS);
        let mut sent = [0_u32; ENDPOINTS];
        let name = pair.name;
        let mut refused = 0_u32;
        pair.until("all messages", || {
            for (at, (client, _)) in all.iter().enumerate() {
                while sent[at] < MESSAGES {
                    let header = (at as u64) << 32 | u64::from(sent[at]);
                    match client.endpoint.am_short(0, header, &[7; 20][..header_length(header)]) {
                        Ok(()) => sent[at] += 1,
                        Err(PostError::NoResource) => {
                            refused += 1;
                            break;
                        }
                        Err(error) => panic!("{name}: {error}"),
                    }
                }
            }
            received.borrow().iter().all(|count| *count == MESSAGES)
        });
        assert!(refused > 0, "{name}: shares never ran out");
    }
}

fn header_length(header: u64) -> usize {
    header as usize % 17
}

/// What a connected endpoint costs this process after a message: its ring, and all that the library
/// allocates. Measured on a device of the machine, because a software HCA of this process allocates
/// as well. The objects of libmlx5 are not counted.
#[test]
fn memory_of_an_endpoint_and_over_datagrams() {
    /// Pairs of endpoints that are opened at a time: the first posts nothing.
    const PAIRS: usize = 257;
    let transport = std::env::var("BAREWIRE_TEST_TRANSPORT").unwrap_or("rc_mlx5".to_owned());
    let limits: &[_] = match &*transport {
        "rc_mlx5" => &[(256, 20 << 10), (16, 6 << 10)],
        "ud_mlx5" => &[(256, 1536)],
        _ => &[],
    };
    if std::env::var_os("BAREWIRE_TEST_DEVICES").is_none()
        || std::env::var("BAREWIRE_MLX5_SETUP").as_deref() != Ok("devx")
    {
        eprintln!("skipped: no device of the machine by DEVX");
        return;
    }
    for &(ring, most) in limits {
        let config = InterfaceConfig::default().send_ring(ring).max_endpoints(8 * PAIRS as u32);
        let mut pair = Pair::rc(&config).swap_remove(0);
        let inbox = collect(&pair.server.interface, 1);
        let mut open = || {
            let before = allocator::held();
            let all = endpoints(&pair, PAIRS);
            // One at a time, which needs no further buffers of the interface.
            for (client, _) in &all[1..] {
                pair.until("post", || client.endpoint.am_short(1, 0, &[]).is_ok());
                pair.until("message", || inbox.borrow_mut().pop().is_some());
            }
            (all, allocator::held() - before)
        };
        let (some, _) = open();
        // The interface registers further buffers when its progress is late.
        let further = [(); 4].map(|()| open());
        let bytes = further.iter().map(|(_, bytes)| *bytes as usize / (2 * PAIRS)).min().unwrap();
        eprintln!("{transport}, a send ring of {ring} blocks: {bytes} bytes for an endpoint");
        assert!(bytes <= most, "{bytes} bytes with a send ring of {ring} blocks");
        drop((some, further));
    }
}

/// Each of many endpoints exchanges messages with its peer, in one process. `BAREWIRE_TEST_PEERS`
/// sets their number, which is lower by default.
#[test]
fn many_peers_exchange_messages() {
    let count = std::env::var("BAREWIRE_TEST_PEERS").map_or(300, |count| count.parse().unwrap());
    let config = InterfaceConfig::default()
        .send_ring(16)
        .receive_ring(16)
        .spare_receive_buffers(0)
        .max_endpoints(count as u32)
        .min_rnr_timer(1);
    for transport in [TransportId::RcMlx5, TransportId::DcMlx5, TransportId::UdMlx5] {
        let one = device(hca::Faults::default());
        let start = Instant::now();
        let name = transport.name();
        let mut pair = Pair::over_soft(name, &config, transport, [one.clone(), one]);
        let all = endpoints(&pair, count);
        let connected = start.elapsed();
        let questions = collect(&pair.server.interface, 1);
        let answers = collect(&pair.client.interface, 2);
        for round in 0..3 {
            for (kind, inbox, body) in [(1, &questions, "question"), (2, &answers, "answer")] {
                let mut left: Vec<usize> = (0..count).collect();
                pair.until(body, || {
                    left.retain(|&at| {
                        let (client, server) = &all[at];
                        let endpoint = if kind == 1 { &client.endpoint } else { &server.endpoint };
                        let header = at as u64 | round << 32;
                        match endpoint.am_short(kind, header, body.as_bytes()) {
                            Ok(()) => false,
                            Err(PostError::NoResource) => true,
                            Err(error) => panic!("{name}: {error}"),
                        }
                    });
                    left.is_empty() && inbox.borrow().len() == count
                });
                let mut received = inbox.take();
                received.sort_unstable();
                let mut wanted: Vec<_> = (0..count)
                    .map(|at| [&(at as u64 | round << 32).to_le_bytes(), body.as_bytes()].concat())
                    .collect();
                wanted.sort_unstable();
                assert!(received == wanted, "{name}: {body} of round {round}");
            }
        }
        eprintln!("{name}: {count} peers, connected in {connected:.1?}, {:.1?}", start.elapsed());
    }
}
