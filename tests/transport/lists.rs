//! Lists of puts and gets: all of a list is posted or nothing, by transports whose queue is a ring.

use barewire::{Access, InterfaceConfig, PostError, Posted};

use crate::support::{Pair, transfers};

const SIZE: usize = 24;

#[test]
fn a_list_is_posted_as_a_whole_or_not_at_all() {
    for mut pair in Pair::joined(&InterfaceConfig::default().send_ring(64)) {
        let (remote, key) = pair.target(65 * SIZE, Access::all());
        let local = pair.client.domain.allocate(65 * SIZE, Access::empty()).unwrap();
        local.write(0, &[7; 65 * SIZE]).unwrap();
        let endpoint = pair.client.endpoint.clone();
        let list = transfers(65, SIZE, &local, &remote, &key);
        assert_eq!(endpoint.put_list(&list, None), Err(PostError::TooManyTransfers { limit: 64 }));
        // With two entries in use there is no room for a list of the size of the ring.
        for _ in 0..2 {
            assert_eq!(endpoint.put_short(&[1; 8], remote.address(), &key), Ok(()));
        }
        assert_eq!(endpoint.put_list(&list[..64], None), Err(PostError::NoResource));
        let mut got = vec![0; 65 * SIZE];
        remote.read(SIZE, &mut got[SIZE..]).unwrap();
        assert_eq!(got, vec![0; 65 * SIZE], "nothing of it was written");
        pair.until("room", || endpoint.put_list(&list[..64], None) == Ok(Posted::InProgress));
    }
}
