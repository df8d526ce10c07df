//! What published measurements say of adapters, and another implementation might do otherwise.

use crate::support::{Connection, Node, Qp, Wqe};
use barewire_hca::{Fabric, Faults};
use barewire_layouts::wqe::Opcode;

#[test]
fn frames_to_the_own_port_are_not_lost() {
    const PAIRS: usize = 100;
    const EACH: u64 = 32;
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let counter = node.region(8);
    // Without timeouts, nothing that is lost is sent again.
    let connection = Connection { ack_timeout: 0, ..Connection::default() };
    let mut qps: Vec<[Qp; 2]> = (0..PAIRS)
        .map(|_| {
            let [mut one, mut other] = [(); 2].map(|()| Qp::with_cqs(&node, 6, 6));
            one.connect(&node, other.number, &connection, (1, 2));
            other.connect(&node, one.number, &connection, (2, 1));
            [one, other]
        })
        .collect();
    for [one, _] in &mut qps {
        for number in 0..EACH {
            let write = Wqe::new(Opcode::RdmaWrite).remote(counter.address(), counter.key);
            one.post(&write.inline(&number.to_ne_bytes()));
        }
    }
    while node.device.step() {}
    for [one, _] in &mut qps {
        let done = one.send_cq.drain();
        assert_eq!(done.iter().filter(|one| one.is_ok()).count() as u64, EACH);
    }
    assert_eq!(node.device.counters().send_failures, 0);
}
