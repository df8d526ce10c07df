//! Any bytes are accepted as a command: the device refuses or executes it, but does not panic,
//! miscount or access other memory.

use crate::support::rig::{MEMORY, Rig};
use barewire_hca::{CommandSyndrome, ObjectCounts};
use barewire_layouts::command::cq::{Cqc, CreateCqIn};
use barewire_layouts::command::mcg::{AttachToMcgIn, DetachFromMcgIn};
use barewire_layouts::command::qp::{CreateQpIn, Qpc, ReceiveQueueType, ServiceType};
use barewire_layouts::command::{CommandOpcode, CommandStatus, OutHeader};
use barewire_layouts::doorbell::{
    BLUEFLAME_OFFSET, CQ_DOORBELL_OFFSET, EQ_ARM_OFFSET, EQ_CONSUMER_OFFSET,
};
use barewire_layouts::prm::{View, ViewMut};
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Bytes of the longest request.
const LONGEST: usize = 272;

const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];

/// A rig with everything in it, and the valid requests that made it and would take it apart.
fn furnished(seed: u64) -> (Rig, Vec<Vec<u8>>) {
    let rig = Rig::new();
    // What the rings and doorbell records hold is arbitrary too.
    let mut random = fastrand::Rng::with_seed(seed);
    for offset in (0..MEMORY).step_by(8) {
        // SAFETY: inside the rig's memory, aligned.
        unsafe { rig.memory.add(offset).cast::<u64>().write_volatile(random.u64(..)) };
    }
    let (eqn, rmpn) = (rig.create_eq().expect("valid"), rig.create_rmp().expect("valid"));
    let cqn =
        rig.create_cq(|create| _ = create.nested(CreateCqIn::CQ_CONTEXT).set(Cqc::C_EQN, eqn));
    let cqn = cqn.expect("valid");
    let sharing = rig.create_qp(cqn, |create| {
        let mut context = create.nested(CreateQpIn::QPC);
        context.set(Qpc::RQ_TYPE, ReceiveQueueType::Shared).set(Qpc::SRQN_RMPN_XRQN, rmpn);
        context.set(Qpc::CS_REQ, 0x11).set(Qpc::CS_RES, 1);
    });
    let qpns = [rig.create_qp(cqn, |_| ()).expect("valid"), sharing.expect("valid")];
    let address = rig.device.address();
    rig.connect(qpns[0], (address, qpns[1])).expect("valid");
    rig.connect(qpns[1], (address, qpns[0])).expect("valid");
    let xrcd = rig.alloc_xrcd().expect("valid");
    let xrc_srqn = rig.create_xrc_srq(xrcd, cqn, |_| ()).expect("valid");
    let dctn = rig.create_dct(cqn, rmpn, |_| ()).expect("valid");
    for service in [ServiceType::Xrc, ServiceType::Dci] {
        let change = |create: &mut ViewMut<'_, CreateQpIn>| {
            create.nested(CreateQpIn::QPC).set(Qpc::ST, service).set(Qpc::XRCD, xrcd);
        };
        let qpn = rig.create_qp(cqn, change).expect("valid");
        rig.connect(qpn, (address, qpn)).expect("valid");
    }
    let datagrams = |create: &mut ViewMut<'_, CreateQpIn>| {
        create.nested(CreateQpIn::QPC).set(Qpc::ST, ServiceType::Ud);
    };
    let datagrams = rig.create_qp(cqn, datagrams).expect("valid");
    let attach = |input: &mut ViewMut<'_, AttachToMcgIn>| {
        input.set(AttachToMcgIn::QPN, datagrams).set_array(AttachToMcgIn::MULTICAST_GID, GROUP);
    };
    rig.run::<AttachToMcgIn, _>(attach, |_| ()).expect("valid");
    let mkey = rig.create_mkey(0, MEMORY as u64, |_| ()).expect("valid");
    let made = rig.requests.borrow().clone();
    // These fail and do nothing yet: what they name is in use, or they start from another state.
    for refused in [rig.destroy_cq(cqn), rig.dealloc_pd(rig.pd), rig.dealloc_uar(rig.uar)] {
        refused.expect_err("in use");
    }
    let mut requests = rig.requests.take();
    // And these would succeed: written down by a sister that has the same numbers.
    let sister = Rig::new();
    for request in made {
        sister.execute(&request, &mut [0; LONGEST]);
    }
    sister.requests.take();
    let detach = |input: &mut ViewMut<'_, DetachFromMcgIn>| {
        input.set(DetachFromMcgIn::QPN, datagrams).set_array(DetachFromMcgIn::MULTICAST_GID, GROUP);
    };
    let _ = (
        sister.run::<DetachFromMcgIn, _>(detach, |_| ()),
        sister.destroy_mkey(mkey),
        sister.to_err(qpns[0]),
        sister.to_rst(qpns[0]),
        sister.destroy_qp(qpns[1]),
        sister.drain_dct(dctn),
        sister.destroy_dct(dctn),
        sister.destroy_xrc_srq(xrc_srqn),
        sister.dealloc_xrcd(xrcd),
    );
    let _ = sister.query_qp(qpns[0], |_| ());
    requests.extend(sister.requests.take());
    (rig, requests)
}

fn total(counts: ObjectCounts) -> usize {
    let ObjectCounts {
        protection_domains,
        uar_pages,
        event_queues,
        completion_queues,
        shared_receive_queues,
        counter_sets,
        queue_pairs,
        xrc_domains,
        dynamic_targets,
        dynamic_connections: _,
        memory_keys,
        umems,
    } = counts;
    let queues = event_queues + completion_queues + shared_receive_queues + queue_pairs;
    // Connections are made and ended by packets.
    let queues = queues + xrc_domains + dynamic_targets;
    queues + protection_domains + uar_pages + counter_sets + memory_keys + umems
}

/// Runs one request and checks what must hold whatever it is.
fn check(rig: &Rig, request: &[u8], answer: usize) -> Result<(), TestCaseError> {
    let before = rig.device.objects();
    let mut output = vec![0xff; answer];
    rig.execute(request, &mut output);
    let after = rig.device.objects();
    if let Some(header) = View::<OutHeader>::new(&output) {
        let status = header.get(OutHeader::STATUS).expect("a status that is named");
        if status == CommandStatus::Ok {
            prop_assert!(total(after).abs_diff(total(before)) <= 1);
        } else {
            let syndrome = CommandSyndrome::from_bits(header.get(OutHeader::SYNDROME));
            prop_assert_eq!(syndrome.map(CommandSyndrome::status), Some(status));
            prop_assert!(output[8..].iter().all(|&byte| byte == 0), "an answer behind a refusal");
            prop_assert_eq!(after, before);
        }
    } else {
        prop_assert_eq!(after, before);
        prop_assert!(
            output.first().is_none_or(|&status| status == CommandStatus::BadOutputLength as u8)
        );
    }
    Ok(())
}

/// Lets the engine work on whatever there is by now.
fn turn(rig: &Rig, doorbell: u64) -> Result<(), TestCaseError> {
    if let Some(page) = rig.device.uar_page(rig.uar) {
        // SAFETY: inside the page, aligned.
        let store =
            |offset| unsafe { page.as_ptr().add(offset).cast::<u64>().write_volatile(doorbell) };
        for offset in [CQ_DOORBELL_OFFSET, EQ_ARM_OFFSET, EQ_CONSUMER_OFFSET, BLUEFLAME_OFFSET] {
            store(offset);
        }
    }
    for _ in 0..4 {
        rig.device.step();
    }
    prop_assert!(rig.guards_intact());
    Ok(())
}

/// A request of a known opcode with numbers that may be those of objects.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => Just(0_u8), 2 => 0..8_u8, 1 => 0x40..0x46_u8, 1 => any::<u8>()];
    (select(CommandOpcode::ALL), prop::collection::vec(byte, LONGEST)).prop_map(
        |(opcode, mut bytes)| {
            bytes[..2].copy_from_slice(&(opcode as u16).to_be_bytes());
            bytes[2..8].fill(0);
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_answered(
        requests in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), 0..40_usize), 1..40),
    ) {
        let rig = Rig::new();
        for (request, answer) in requests {
            check(&rig, &request, answer)?;
        }
    }

    #[test]
    fn plausible_requests_keep_the_count(
        requests in prop::collection::vec(plausible(), 1..100),
        seed in any::<u64>(),
    ) {
        let (rig, _) = furnished(seed);
        for request in requests {
            check(&rig, &request, LONGEST)?;
            turn(&rig, u64::from_ne_bytes(request[100..108].try_into().expect("eight")))?;
        }
    }

    #[test]
    fn mutations_of_valid_requests_keep_the_count(
        mutations in prop::collection::vec((any::<Index>(), prop::collection::vec((any::<Index>(), any::<u8>()), 0..4)), 1..100),
        doorbells in any::<[u64; 4]>(),
        seed in any::<u64>(),
    ) {
        let (rig, requests) = furnished(seed);
        for (turns, (which, changes)) in mutations.into_iter().enumerate() {
            let mut request = which.get(&requests).clone();
            for (at, value) in changes {
                *at.get_mut(&mut request) ^= value;
            }
            check(&rig, &request, LONGEST)?;
            turn(&rig, doorbells[turns % doorbells.len()])?;
        }
    }
}
