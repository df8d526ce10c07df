use std::collections::BTreeSet;

use barewire::address::{DeviceAddress, InterfaceAddress};

use super::*;
use crate::address::{Summary, Uuid};

/// The abilities of a transport that has everything.
fn everything() -> Abilities {
    Abilities::from_bits(u16::MAX).difference(Abilities::SOFTWARE.union(Abilities::SHARED_DUPLEX))
}

fn entry(
    id: TransportId,
    device: u16,
    node: u8,
    abilities: Abilities,
    numbers: (f64, f64, f64),
) -> Entry {
    let place = match id {
        TransportId::Self_ => Place::Process,
        TransportId::Shm | TransportId::Cma => Place::Node,
        _ => Place::Network,
    };
    let (overhead_ns, latency_ns, bandwidth) = numbers;
    let summary = Summary {
        overhead_ns,
        latency_ns,
        bandwidth,
        priority: 0,
        max_message: 8256,
        abilities,
        place,
    };
    // The body of a device address over shared memory is the node.
    let fill = if place == Place::Node { node } else { node ^ 0x5a };
    let bodies = (id != TransportId::Self_).then(|| {
        let device = vec![fill; DeviceAddress::body_length(id)];
        let interface = vec![fill; InterfaceAddress::body_length(id)];
        (
            DeviceAddress::from_body(id, &device).unwrap(),
            InterfaceAddress::from_body(id, &interface).unwrap(),
        )
    });
    Entry::new(id, device, summary.rounded(), bodies)
}

fn self_() -> Entry {
    entry(
        TransportId::Self_,
        0,
        0,
        everything().difference(Abilities::TO_ENDPOINT),
        (10.0, 16.0, 7e9),
    )
}

fn shm(node: u8) -> Entry {
    entry(
        TransportId::Shm,
        1,
        node,
        everything().union(Abilities::SHARED_DUPLEX),
        (40.0, 80.0, 10e9),
    )
}

fn cma(node: u8) -> Entry {
    let copies = Abilities::PUT_ZCOPY
        .union(Abilities::GET_ZCOPY)
        .union(Abilities::TO_INTERFACE)
        .union(Abilities::PENDING)
        .union(Abilities::SHARED_DUPLEX);
    entry(TransportId::Cma, 1, node, copies, (2000.0, 80.0, 11e9))
}

fn tcp(device: u16, node: u8) -> Entry {
    entry(TransportId::Tcp, device, node, everything(), (1000.0, 5000.0, 3e9))
}

fn rc(device: u16, node: u8) -> Entry {
    entry(
        TransportId::RcMlx5,
        device,
        node,
        everything().difference(Abilities::TO_INTERFACE),
        (40.0, 800.0, 12.5e9),
    )
}

fn address(uuid: u8, entries: &[Entry]) -> WorkerAddress {
    WorkerAddress::new(Uuid([uuid; 16]), entries)
}

fn planned(mine: &[Entry], theirs: &[Entry]) -> Plan {
    plan(&address(1, mine), &address(2, theirs), Needs::default(), &Limits::default(), &mut |_| {
        Ok(())
    })
}

fn lanes(plan: &Plan) -> Vec<(TransportId, String)> {
    plan.lanes.iter().map(|lane| (lane.transport, lane.kinds.to_string())).collect()
}

fn machine(node: u8) -> Vec<Entry> {
    vec![self_(), shm(node), cma(node), tcp(2, node), rc(3, node), rc(4, node)]
}

#[test]
fn a_software_device_carries_bulk_data_only_without_shared_memory() {
    let mut soft = rc(3, 1);
    soft.summary.abilities = soft.summary.abilities.union(Abilities::SOFTWARE);
    let of = |mine: &[Entry], software: bool| {
        let limits = Limits::default().software(software);
        let addresses = [address(1, mine), address(2, mine)];
        plan(&addresses[0], &addresses[1], Needs::default(), &limits, &mut |_| Ok(()))
    };
    let beside = of(&[shm(1), soft.clone()], true);
    assert_eq!(
        lanes(&beside),
        [(TransportId::Shm, "messages control memory atomics bulk".to_owned())]
    );
    let reason = |plan: &Plan, kind| {
        let soft = Pair { here: 1, there: 1 };
        let mut all = plan.refusals.iter();
        all.find(|one| one.kind == kind && one.pair == soft).map(|one| one.reason.clone())
    };
    assert_eq!(reason(&beside, Kind::Bulk), Some(Reason::SoftwareBesideMemory));
    assert!(matches!(reason(&beside, Kind::Messages), Some(Reason::Outscored(_))));
    // A real device is faster than the copies of shared memory.
    let real = of(&[shm(1), rc(3, 1)], true);
    assert_eq!(real.lane(Kind::Bulk).map(|lane| lane.transport), Some(TransportId::RcMlx5));
    // Over the network, it is used as the device that it models, if it is named.
    let named = of(&[tcp(2, 1), soft.clone()], true);
    assert_eq!(named.lane(Kind::Messages).map(|lane| lane.transport), Some(TransportId::RcMlx5));
    let unnamed = of(&[shm(1), soft], false);
    assert_eq!(reason(&unnamed, Kind::Bulk), Some(Reason::Software));
}

#[test]
fn costs_follow_from_the_lanes() {
    let machine = machine(1);
    let plan = planned(&machine, &machine);
    let (messages, bulk) = (plan.lane(Kind::Messages).unwrap(), plan.lane(Kind::Bulk).unwrap());
    let costs = plan.costs().unwrap();
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9 * b;
    assert!(near(costs.eager.fixed_ns, messages.overhead_ns / 2.0 + messages.latency_ns));
    assert!(near(costs.rendezvous.unwrap().per_byte_ns, 1e9 / bulk.bandwidth));
    assert!(plan.to_string().contains(&format!("tagged messages: {costs}")), "{plan}");
    assert_eq!(planned(&[], &machine).costs(), None);
}

#[test]
fn on_one_node_shared_memory_carries_everything() {
    let machine = [self_(), shm(1), cma(1), tcp(2, 1)];
    let plan = planned(&machine, &machine);
    assert_eq!(
        lanes(&plan),
        [(TransportId::Shm, "messages control memory atomics bulk".to_owned())]
    );
    assert!(plan.missing.is_empty());
}

#[test]
fn between_nodes_rc_needs_tcp_to_exchange_addresses() {
    let plan = planned(&machine(1), &machine(2));
    let expected = [
        (TransportId::RcMlx5, "messages memory atomics bulk"),
        (TransportId::Tcp, "control"),
        (TransportId::RcMlx5, "bulk"),
    ];
    assert_eq!(lanes(&plan), expected.map(|(id, kinds)| (id, kinds.to_owned())));
    let rails: BTreeSet<_> =
        plan.of_kind(Kind::Bulk).map(|lane| (lane.pair.here, lane.pair.there)).collect();
    assert_eq!(rails, BTreeSet::from([(4, 4), (5, 5)]));
    // Without tcp there is nothing that can carry the exchange.
    let alone = planned(&[rc(0, 1)], &[rc(0, 2)]);
    assert!(alone.lanes.is_empty());
    assert!(alone.refusals.iter().all(|refusal| refusal.reason == Reason::NoControl), "{alone}");
    assert!(alone.lacking().contains(Kind::Messages));
}

#[test]
fn within_a_process_self_carries_messages() {
    let own = address(1, &machine(1));
    let plan = plan(&own, &own, Needs::default(), &Limits::default(), &mut |_| Ok(()));
    assert_eq!(plan.lane(Kind::Messages).unwrap().transport, TransportId::Self_);
}

#[test]
fn what_cannot_be_reached_is_not_a_lane() {
    let (mine, theirs) = (address(1, &machine(1)), address(2, &machine(1)));
    let mut asked = 0;
    let plan = plan(&mine, &theirs, Needs::default(), &Limits::default(), &mut |pair| {
        asked += 1;
        if pair.here == 1 { Err("its directory is another".to_owned()) } else { Ok(()) }
    });
    assert_eq!(plan.lane(Kind::Messages).unwrap().transport, TransportId::RcMlx5);
    // shm, cma, tcp, and two rc devices on each side.
    assert_eq!(asked, 7);
    assert!(plan.to_string().contains("its directory is another"), "{plan}");
}

#[test]
fn software_is_used_only_if_it_is_named() {
    let mut soft = rc(0, 1);
    soft.summary.abilities = soft.summary.abilities.union(Abilities::SOFTWARE);
    let mine = [soft.clone(), tcp(1, 1)];
    let plan_with = |software, mine: &[Entry]| {
        let limits = Limits::default().software(software);
        plan(&address(1, mine), &address(2, mine), Needs::default(), &limits, &mut |_| Ok(()))
    };
    assert_eq!(lanes(&plan_with(false, &mine)).len(), 1);
    assert_eq!(plan_with(true, &mine).lane(Kind::Messages).unwrap().transport, TransportId::RcMlx5);
    let nothing = plan_with(false, &[soft]);
    assert!(nothing.lanes.is_empty());
    assert!(nothing.to_string().contains("only if both sides name it"), "{nothing}");
}

#[test]
fn loopback_leads_to_no_other_network_and_is_no_rail_beside_memory() {
    let lo = |network| {
        let mut lo = tcp(9, network);
        lo.summary.place = Place::Loopback;
        lo
    };
    // Two hosts, with and without memory that could be shared; and two containers of one host.
    for (mine, theirs) in [
        (vec![lo(1)], vec![lo(2)]),
        (vec![shm(1), lo(1)], vec![shm(2), lo(2)]),
        (vec![shm(1), lo(1)], vec![shm(1), lo(2)]),
    ] {
        let plan = planned(&mine, &theirs);
        assert!(plan.lanes.iter().all(|lane| lane.transport == TransportId::Shm), "{plan}");
        assert!(plan.refusals.iter().any(|one| one.reason == Reason::OtherNetwork), "{plan}");
    }
    let near = planned(&[shm(1), lo(1)], &[shm(1), lo(1)]);
    assert!(near.refusals.iter().any(|refusal| refusal.reason == Reason::LoopbackBesideMemory));
}

/// The address of a device shows that it is on the loopback, whatever its place is.
#[test]
fn a_software_device_on_the_loopback_leads_to_no_other_network() {
    let soft = |network: u8, gid: &str| {
        let mut entry = rc(0, network);
        let gid: std::net::Ipv6Addr = gid.parse().unwrap();
        let mut body = vec![0; DeviceAddress::body_length(TransportId::RcMlx5)];
        body[..16].copy_from_slice(&gid.octets());
        body[24..].fill(network);
        entry.device_address = Some(DeviceAddress::from_body(TransportId::RcMlx5, &body).unwrap());
        entry
    };
    let lanes_of = |here: Entry, there: Entry| {
        let plan = planned(&[here, tcp(1, 1)], &[there, tcp(1, 2)]);
        plan.of_kind(Kind::Messages).map(|lane| lane.transport).collect::<Vec<_>>()
    };
    let (loopback, other) = ("::ffff:127.7.0.1", "::ffff:10.9.0.1");
    assert_eq!(lanes_of(soft(1, loopback), soft(1, loopback)), [TransportId::RcMlx5]);
    assert_eq!(lanes_of(soft(1, other), soft(2, other)), [TransportId::RcMlx5]);
    for pair in [(loopback, loopback), (loopback, other), (other, loopback)] {
        assert_eq!(lanes_of(soft(1, pair.0), soft(2, pair.1)), [TransportId::Tcp], "{pair:?}");
    }
}

#[test]
fn a_detour_is_the_last_resort_and_no_rail() {
    let (mine, theirs) = ([tcp(0, 1), tcp(1, 1)], [tcp(0, 2), tcp(1, 2)]);
    let plan_with = |direct: &dyn Fn(Pair) -> Result<bool, String>| {
        let sides = Sides { uuids: (Uuid([1; 16]), Uuid([2; 16])), here: &mine, there: &theirs };
        sides.plan(Needs::default(), &Limits::default(), &mut |pair| direct(pair))
    };
    let pairs = |plan: &Plan| plan.lanes.iter().map(|lane| lane.pair).collect::<Vec<_>>();
    let last = Pair { here: 1, there: 1 };
    let plan = plan_with(&|pair| Ok(pair == last));
    assert!(pairs(&plan).iter().all(|pair| *pair == last), "{plan}");
    assert!(plan.refusals.iter().any(|one| one.reason == Reason::Detour), "{plan}");
    let none = plan_with(&|_| Ok(false));
    assert!(none.lacking().is_empty() && none.of_kind(Kind::Bulk).count() == 1, "{none}");
}

#[test]
fn the_table_is_readable() {
    let text = planned(&machine(1), &machine(2)).to_string();
    let head = "pair  transport  latency  bandwidth  connects to  for";
    assert!(text.starts_with(head), "{text}");
    assert!(text.contains("the peer is on another node"), "{text}");
    assert!(text.contains("pairs of different transports"), "{text}");
}

#[test]
fn needs_travel_as_a_word() {
    let mut needs = Needs::messages().require(Kind::Bulk);
    needs.events = true;
    assert_eq!(Needs::from_bits(needs.bits()), needs);
    assert_eq!(Needs::from_bits(u32::MAX).required, Kinds::ALL);
    assert_eq!(Kinds::from_bits(0x20), None);
}

/// Entries with random numbers, abilities and places.
fn random(random: &mut fastrand::Rng) -> Vec<Entry> {
    const IDS: [TransportId; 5] = [
        TransportId::Self_,
        TransportId::Shm,
        TransportId::Tcp,
        TransportId::RcMlx5,
        TransportId::RcMlx5,
    ];
    let count = random.usize(0..4);
    let mut device = 0;
    (0..count)
        .map(|at| {
            device += u16::from(at > 0 && random.bool());
            let abilities = Abilities::from_bits(random.u16(..) | random.u16(..) | random.u16(..));
            let numbers = (random.f64() * 4e3, random.f64() * 1e5, random.f64() * 4e10);
            let mut entry =
                entry(IDS[random.usize(..IDS.len())], device, random.u8(1..3), abilities, numbers);
            entry.summary.max_message = random.usize(..4) * 4096;
            entry.control = random.bool().then_some(std::num::NonZeroU16::MIN);
            if random.u8(..8) == 0 {
                entry.summary.place = Place::Loopback;
            }
            entry
        })
        .collect()
}

/// Each kind's pairs, with those of the second plan turned round.
fn pairs(plan: &Plan, turned: bool) -> BTreeSet<(Kind, u8, u8)> {
    let of = |lane: &Lane| {
        let (here, there) = (lane.pair.here, lane.pair.there);
        let pair = if turned { (there, here) } else { (here, there) };
        lane.kinds.iter().map(move |kind| (kind, pair.0, pair.1)).collect::<Vec<_>>()
    };
    plan.lanes.iter().flat_map(of).collect()
}

/// Case by case, so that a failure can be repeated by its seed.
fn check_case(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mine, theirs) = (address(1, &random(&mut rng)), address(2, &random(&mut rng)));
    let mut needs = Needs::default();
    (needs.events, needs.peer_failure, needs.all_atomics) = (rng.bool(), rng.bool(), rng.bool());
    let limits = Limits::default().software(rng.bool()).rails(rng.usize(1..4));
    let reachable = rng.u64(..) | rng.u64(..);
    let reached = |here: u8, there: u8| reachable & 1 << (here * 8 + there) != 0;
    let unreachable = "unreachable".to_owned();
    let forward = plan(&mine, &theirs, needs, &limits, &mut |pair| {
        reached(pair.here, pair.there).then_some(()).ok_or(unreachable.clone())
    });
    let backward = plan(&theirs, &mine, needs, &limits, &mut |pair| {
        reached(pair.there, pair.here).then_some(()).ok_or(unreachable.clone())
    });
    assert_eq!(
        pairs(&forward, false),
        pairs(&backward, true),
        "seed {seed}\n{forward}\n{backward}"
    );
    let candidates = mine.entries().count() * theirs.entries().count();
    for kind in Kind::ALL {
        let refused = forward.refusals.iter().filter(|refusal| refusal.kind == kind).count();
        let lanes = forward.of_kind(kind).count();
        // Control is not considered if nothing can carry it.
        let considered = kind != Kind::Control || lanes > 0;
        assert_eq!(refused + lanes, if considered { candidates } else { 0 }, "seed {seed} {kind}");
        assert_eq!(considered && lanes == 0, forward.missing.contains(kind), "seed {seed} {kind}");
        assert!(lanes <= if kind == Kind::Bulk { limits.rails } else { 1 }, "seed {seed} {kind}");
    }
    assert!(
        forward.lanes.is_empty()
            || forward.lane(Kind::Control).is_some()
            || forward.lanes.iter().all(|lane| lane.connects == Connects::ToInterface),
        "seed {seed}"
    );
}

#[test]
fn a_million_cases_are_symmetric_and_account_for_every_pair() {
    for seed in 0..1_000_000 {
        check_case(seed);
    }
}

#[test]
fn more_bandwidth_never_makes_a_transfer_slower() {
    let cost = |plan: &Plan| {
        let fastest = plan
            .of_kind(Kind::Bulk)
            .map(|lane| lane.latency_ns + lane.overhead_ns + LARGE * 1e9 / lane.bandwidth);
        fastest.fold(f64::INFINITY, f64::min)
    };
    for seed in 0..20_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut mine, theirs) = (random(&mut rng), random(&mut rng));
        let before = planned(&mine, &theirs);
        let Some(faster) = mine.first_mut() else { continue };
        faster.summary.bandwidth *= 1.0 + rng.f64() * 10.0;
        let after = planned(&mine, &theirs);
        assert!(cost(&after) <= cost(&before), "seed {seed}\n{before}\n{after}");
    }
}
