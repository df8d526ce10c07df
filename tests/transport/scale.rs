//! Many endpoints of one interface: shares of the completion queue, and memory per endpoint.

use std::cell::RefCell;
use std::rc::Rc;

use barewire::{InterfaceConfig, PostError};

use super::allocator;
use super::support::{Pair, Side, connect, until};

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

/// Forty endpoints can have 1344 blocks outstanding, but 2560 fit their rings. Each can still fill
/// its ring while the others are idle, and all together neither lose nor reorder a message.
#[test]
fn endpoints_share_a_completion_queue() {
    const ENDPOINTS: usize = 40;
    const RING: u32 = 64;
    const MESSAGES: u32 = 400;
    let config = InterfaceConfig::default()
        .send_ring(RING)
        .receive_ring(16)
        .max_endpoints(ENDPOINTS as u32)
        .min_rnr_timer(1);
    for mut pair in Pair::rc(&config) {
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
        // Alone: a refused post takes a larger share, so the next may succeed.
        for (at, (client, _)) in all.iter().enumerate() {
            let mut refused = 0;
            let before = sent[at];
            while refused < 8 {
                let header = (at as u64) << 32 | u64::from(sent[at]);
                match client.endpoint.am_short(0, header, &[7; 20][..header_length(header)]) {
                    Ok(()) => sent[at] += 1,
                    Err(PostError::NoResource) => refused += 1,
                    Err(error) => panic!("{name}: {error}"),
                }
            }
            assert_eq!(sent[at] - before, RING, "{name}: messages of endpoint {at}");
            pair.until("messages", || received.borrow()[at] == sent[at]);
            // Frees the ring.
            let mut workers = [&mut pair.worker, &mut pair.server_worker];
            until(&mut workers, "flush", || {
                client.endpoint.flush(barewire::FlushMode::Local, None)
                    == Ok(barewire::Posted::Done)
            });
        }
        // All together.
        let goal = MESSAGES + RING;
        let mut refused = 0_u32;
        pair.until("all messages", || {
            for (at, (client, _)) in all.iter().enumerate() {
                while sent[at] < goal {
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
            received.borrow().iter().all(|count| *count == goal)
        });
        assert!(refused > 0, "{name}: shares never ran out");
    }
}

fn header_length(header: u64) -> usize {
    header as usize % 17
}

/// What an endpoint of `rc_mlx5` costs this process: its ring, and all that the library allocates.
/// Measured on a device of the machine, because a software HCA of this process allocates as well.
#[test]
fn memory_of_an_endpoint() {
    const ENDPOINTS: usize = 512;
    let transport = std::env::var("BAREWIRE_TEST_TRANSPORT");
    if std::env::var_os("BAREWIRE_TEST_DEVICES").is_none()
        || std::env::var("BAREWIRE_MLX5_SETUP").as_deref() != Ok("devx")
        || transport.is_ok_and(|transport| transport != "rc_mlx5")
    {
        eprintln!("skipped: no device of the machine by DEVX");
        return;
    }
    for (ring, most) in [(256, 20 << 10), (16, 6 << 10)] {
        let config = InterfaceConfig::default().send_ring(ring).max_endpoints(2 * ENDPOINTS as u32);
        let pair = Pair::rc(&config).swap_remove(0);
        let some = endpoints(&pair, ENDPOINTS / 2);
        let before = allocator::held();
        let further: Vec<_> = (0..ENDPOINTS / 2)
            .map(|_| {
                let (client, server) = (pair.client.another(), pair.server.another());
                connect(&client, &server);
                (client, server)
            })
            .collect();
        let bytes = (allocator::held() - before) as usize / ENDPOINTS;
        eprintln!("an endpoint with a send ring of {ring} blocks: {bytes} bytes");
        assert!(bytes <= most, "{bytes} bytes with a send ring of {ring} blocks");
        drop((some, further));
    }
}
