//! `barewire plan`: which lanes two addresses get, and why other pairs are rejected.

use crate::args::PlanArgs;
use crate::error::{Error, local};
use crate::output::{Output, entry};
use barewire_wireup::address::{Abilities, PMI1_VALUE, WorkerAddress};
use barewire_wireup::node::{Node, Rules};
use barewire_wireup::plan::{Costs, Kind, Kinds, Lane, Limits, Line, Needs, Pair, Plan, plan};
use serde_json::{Value, json};

pub(crate) fn run(args: &PlanArgs, out: &mut Output) -> Result<(), Error> {
    match &args.addresses[..] {
        [] => own(args, out),
        [own, peer] => between(&parse("A", own)?, &parse("B", peer)?, args.json, out),
        _ => Err(Error::Usage("plan needs the addresses of both sides, or none".to_owned())),
    }
}

fn parse(name: &str, text: &str) -> Result<WorkerAddress, Error> {
    text.trim().parse().map_err(|error| Error::Usage(format!("address {name}: {error}")))
}

/// Plans offline, from the two addresses alone.
fn between(
    own: &WorkerAddress,
    peer: &WorkerAddress,
    as_json: bool,
    out: &mut Output,
) -> Result<(), Error> {
    // A software device is in an address only if its user named it.
    let names_software = |address: &WorkerAddress| {
        address.entries().any(|entry| entry.summary.abilities.contains(Abilities::SOFTWARE))
    };
    let limits = Limits::default().software(names_software(own) && names_software(peer));
    let plan = plan(own, peer, Needs::default(), &limits, &mut |_| Ok(()));
    if as_json {
        out.line(format!("{:#}", plan_json(&plan)))?;
    } else {
        if own.uuid() == peer.uuid() {
            out.line("A and B are the same address: this is the plan of a node with itself")?;
        }
        plan.to_string().trim_end().lines().try_for_each(|line| out.line(entry(line)))?;
    }
    let lacking = plan.lacking();
    if lacking.is_empty() { Ok(()) } else { Err(Error::Local(format!("no lane for {lacking}"))) }
}

fn plan_json(plan: &Plan) -> Value {
    let pair = |pair: Pair| json!([pair.here, pair.there]);
    let kinds = |kinds: Kinds| -> Value { kinds.iter().map(Kind::name).collect() };
    let lane = |lane: &Lane| {
        json!({
            "pair": pair(lane.pair), "transport": lane.transport.name(), "kinds": kinds(lane.kinds),
            "connects": format!("{:?}", lane.connects), "latency_ns": lane.latency_ns,
            "overhead_ns": lane.overhead_ns, "bandwidth": lane.bandwidth,
            "max_message": lane.max_message,
        })
    };
    let line = |line: Line| json!({ "fixed_ns": line.fixed_ns, "per_byte_ns": line.per_byte_ns });
    let costs = |costs: Costs| {
        json!({
            "eager": line(costs.eager), "rendezvous": costs.rendezvous.map(line),
            "threshold": costs.crossing(),
        })
    };
    let rejected = plan.refusals.iter().map(|refusal| {
        json!({
            "pair": pair(refusal.pair), "kind": refusal.kind.name(),
            "reason": refusal.reason.to_string(),
        })
    });
    json!({
        "lanes": plan.lanes.iter().map(lane).collect::<Value>(), "missing": kinds(plan.missing),
        "tagged": plan.costs().map(costs), "rejected": rejected.collect::<Value>(),
    })
}

/// Prints the address of a node on this machine, and what is not in it. The address is of this run,
/// so that peers cannot connect to it, but its interfaces are those that a program gets.
fn own(args: &PlanArgs, out: &mut Output) -> Result<(), Error> {
    let mut rules = Rules::from_env().map_err(|error| Error::Usage(error.to_string()))?;
    if !args.devices.is_empty() {
        rules = rules.only(args.devices.iter().cloned());
    }
    let node = Node::open(&rules).map_err(|error| local("node", &error))?;
    let address = node.address();
    out.line(&address)?;
    out.line("")?;
    for (index, entry) in address.entries().enumerate() {
        let summary = &entry.summary;
        let device = entry.device_address.map_or_else(String::new, |device| format!(" {device}"));
        let latency = format!("{:.2} us", summary.latency_ns / 1e3);
        let bandwidth = format!("{:.1} GB/s", summary.bandwidth / 1e9);
        let transport = entry.transport_name();
        out.line(format!("{index:>3}  {transport:8}  {latency:>10}  {bandwidth:>10} {device}"))?;
    }
    let length = address.as_bytes().len();
    out.line(format!("{length} bytes"))?;
    if length > PMI1_VALUE {
        out.line(format!("longer than {PMI1_VALUE} bytes: it takes several keys under PMI-1"))?;
    }
    for absent in node.absent() {
        out.line(entry(&format!("absent {}: {}", absent.what, absent.reason)))?;
    }
    Ok(())
}
