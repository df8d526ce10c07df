//! Many operations: through small rings, over a lossy wire, and compared with a model.

use barewire::{Access, FlushMode, InterfaceConfig};
use barewire_hca as hca;

use crate::support::{Pair, Watch, collect, contents, headers, pattern};

/// A wire that drops, duplicates, reorders and corrupts packets.
#[test]
fn a_bad_wire_loses_nothing() {
    let faults =
        hca::Faults::default().drop(0.01).duplicate(0.01).reorder(0.01).corrupt(0.01).seed(7);
    let config = InterfaceConfig::default().ack_timeout(10);
    let mut pair = Pair::over_udp(&config, faults);
    let inbox = collect(&pair.server.interface, 1);
    let size = 1 << 20;
    let (memory, key) = pair.target(size, Access::all());
    let source = pair.client.domain.allocate(size, Access::empty()).unwrap();
    source.write(0, &pattern(9, size)).unwrap();
    let slice = [source.slice(0, size).unwrap()];
    let watch = Watch::new(1);
    watch.posted(pair.post("put", |endpoint| {
        endpoint.put_zcopy(&slice, memory.address(), &key, Some(&watch.completion))
    }));
    for i in 0..500 {
        pair.post("send", |e| e.am_short(1, i, &pattern(i as u32, 64))).unwrap();
    }
    pair.until("all", || watch.is_done() && inbox.borrow().len() == 500);
    assert_eq!(watch.result(), Some(Ok(())));
    pair.flush(FlushMode::Remote);
    assert!(contents(&memory) == pattern(9, size));
    assert_eq!(headers(&inbox), (0..500).collect::<Vec<_>>());
    for (i, message) in inbox.borrow().iter().enumerate() {
        assert_eq!(message[8..], pattern(i as u32, 64));
    }
}
