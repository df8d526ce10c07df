//! Operations on memory over `tcp` take effect in order, without fences.

use barewire::config::Choice;
use barewire::{Access, AtomicOp, Endpoint, FlushMode, InterfaceConfig};

use crate::support::{Pair, Watch, contents, pattern};

/// Around the longest get that is copied, and the bytes that a peer may leave unread.
const SIZES: [usize; 6] = [8192, 8193, 65_536, 1 << 20, (1 << 20) + 8193, 4 << 20];

#[test]
fn later_operations_do_not_change_what_a_get_returns() {
    for integrity in [Choice::No, Choice::Yes] {
        let mut pair = Pair::over_tcp(&InterfaceConfig::default().integrity(integrity));
        for size in SIZES {
            let (target, key) = pair.target(size, Access::all());
            let got = pair.client.domain.allocate(size, Access::LOCAL_WRITE).unwrap();
            let new = pair.client.domain.allocate(size, Access::empty()).unwrap();
            let (old, put) = (pattern(1, size), pattern(2, size));
            new.write(0, &put).unwrap();
            let remote = target.address();
            for kind in 0..3 {
                target.write(0, &old).unwrap();
                got.write(0, &vec![0; size]).unwrap();
                let watch = Watch::new(1);
                let (to, from) = ([got.slice(0, size).unwrap()], [new.slice(0, size).unwrap()]);
                let completion = Some(&watch.completion);
                watch.posted(pair.post("get", |e| e.get_zcopy(&to, remote, &key, completion)));
                match kind {
                    0 => {
                        let put = |e: &Endpoint| e.put_zcopy(&from, remote, &key, None);
                        let _ = pair.post("put", put).unwrap();
                    }
                    // At the end, which is read last.
                    1 => {
                        let last = remote + size as u64 - 8;
                        pair.post("put", |e| e.put_short(&[9; 8], last, &key)).unwrap();
                    }
                    _ => {
                        let last = (remote + size as u64 - 8) & !7;
                        let add = AtomicOp::Add(u64::MAX / 7);
                        pair.post("atomic", |e| e.atomic_post(add, last, &key)).unwrap();
                    }
                }
                pair.until("the get", || watch.is_done());
                pair.flush(FlushMode::Remote);
                assert!(contents(&got) == old, "{size} bytes, operation {kind}");
                assert!(contents(&target) != old, "{size} bytes, operation {kind}");
            }
        }
    }
}

/// More data than the sockets hold, and operations between and behind the gets.
#[test]
fn gets_and_puts_in_turn_see_each_other() {
    const SIZE: usize = 300_000;
    const ROUNDS: u32 = 40;
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let (target, key) = pair.target(SIZE, Access::all());
    target.write(0, &pattern(0, SIZE)).unwrap();
    let length = SIZE * ROUNDS as usize;
    let got = pair.client.domain.allocate(length, Access::LOCAL_WRITE).unwrap();
    let new = pair.client.domain.allocate(length, Access::empty()).unwrap();
    let watch = Watch::new(ROUNDS);
    for round in 0..ROUNDS {
        let at = SIZE * round as usize;
        new.write(at, &pattern(round + 1, SIZE)).unwrap();
        let (to, from) = ([got.slice(at, SIZE).unwrap()], [new.slice(at, SIZE).unwrap()]);
        let (remote, completion) = (target.address(), Some(&watch.completion));
        watch.posted(pair.post("get", |e| e.get_zcopy(&to, remote, &key, completion)));
        let _ = pair.post("put", |e| e.put_zcopy(&from, remote, &key, None)).unwrap();
    }
    pair.until("the gets", || watch.is_done());
    pair.flush(FlushMode::Remote);
    let got = contents(&got);
    for (round, data) in got.chunks(SIZE).enumerate() {
        assert!(data == pattern(round as u32, SIZE), "get {round}");
    }
    assert!(contents(&target) == pattern(ROUNDS, SIZE));
}
