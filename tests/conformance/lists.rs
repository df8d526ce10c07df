//! Lists of puts and gets: all of a list is posted or nothing, and each byte arrives at its
//! address.

use barewire::{Access, InterfaceConfig, TransportId};

use crate::place::Place;
use crate::support::{Watch, transfers};

const SIZE: usize = 24;

pub(crate) fn every_transfer_of_a_list_is_carried_out(place: &Place) {
    // A transfer over `dc_mlx5` takes two blocks.
    let ring = if place.transport() == Some(TransportId::DcMlx5) { 128 } else { 64 };
    let mut pair = place.pair_with(&InterfaceConfig::default().send_ring(ring));
    for count in [0_usize, 1, 2, 16, 63, 64] {
        let bytes = (count * SIZE).max(1);
        let (remote, key) = pair.target(bytes, Access::all());
        let local = pair.client.domain.allocate(bytes, Access::LOCAL_WRITE).unwrap();
        let wanted: Vec<u8> = (0..bytes).map(|at| (at * 5 + count) as u8).collect();
        local.write(0, &wanted).unwrap();
        for back in [false, true] {
            let watch = Watch::new(1);
            let posted = pair.post("list", |endpoint| {
                let list = transfers(count, SIZE, &local, &remote, &key);
                let completion = Some(&watch.completion);
                if back {
                    endpoint.get_list(&list, completion)
                } else {
                    endpoint.put_list(&list, completion)
                }
            });
            watch.posted(posted);
            pair.until("list", || watch.is_done());
            assert_eq!((watch.result(), watch.calls()), (Some(Ok(())), 1), "{}", pair.name);
            let mut got = vec![0; bytes];
            remote.read(0, &mut got).unwrap();
            let there: Vec<u8> = wanted.chunks(SIZE).rev().flatten().copied().collect();
            assert_eq!(
                got,
                if count == 0 { vec![0] } else { there },
                "{}, {count} transfers",
                pair.name
            );
            if back {
                local.read(0, &mut got).unwrap();
                assert_eq!(got, wanted, "{}, {count} transfers back", pair.name);
            } else if count > 0 {
                local.write(0, &vec![0; bytes]).unwrap();
            }
        }
    }
}
