//! Two ends of a link in one process.

use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::config::Choice;
use barewire::{Domain, Endpoint, Flags, Interface, InterfaceConfig, Worker};
use barewire_wireup::tag::{Buffer, Lane, Lanes, Limits, Request, TagLink, TagResult, Tags};

/// Generous: the machine may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Transport and device.
pub(crate) type Name = &'static str;

pub(crate) const SELF: Name = "self/memory";
pub(crate) const SHM: Name = "shm/memory";
pub(crate) const CMA: Name = "cma/memory";
pub(crate) const TCP: Name = "tcp/lo";
pub(crate) const RC: Name = "rc_mlx5/soft0:1";
/// With tag matching by the device.
pub(crate) const TAGGED: Name = "rc_mlx5/soft0:1, tagged";

/// Lanes for messages and for bulk data.
pub(crate) const LANES: [(Name, &[Name]); 9] = [
    (SELF, &[SELF]),
    (SHM, &[CMA]),
    (SHM, &[SHM]),
    (SHM, &[CMA, TCP]),
    (SHM, &[TCP, TCP]),
    (TCP, &[TCP]),
    (RC, &[RC]),
    (TAGGED, &[TAGGED]),
    (TCP, &[]),
];

/// One end: its worker, its tags, and its link to the other end.
pub(crate) struct End {
    pub(crate) worker: Worker,
    pub(crate) tags: Tags,
    pub(crate) link: TagLink,
    /// Stay open with the end.
    _interfaces: Vec<Interface>,
}

struct Opened {
    worker: Worker,
    lanes: Vec<(Rc<Domain>, Interface)>,
}

fn open(names: &[Name]) -> Opened {
    let mut worker = Worker::new();
    let lanes = names.iter().map(|name| {
        let (device, tags) = match name.strip_suffix(", tagged") {
            Some(device) => (device, Choice::Yes),
            None => (*name, Choice::No),
        };
        let domain = Rc::new(Domain::open(&device.parse().expect("a device")).expect("a domain"));
        let config = InterfaceConfig::default().tag_matching(tags);
        let interface = Interface::open(&mut worker, &domain, &config).expect("an interface");
        (domain, interface)
    });
    let lanes = lanes.collect();
    Opened { worker, lanes }
}

fn connect(here: &Interface, there: &Interface) -> (Endpoint, Endpoint) {
    if here.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE) {
        let connect =
            |from: &Interface, to: &Interface| from.connect(&to.address()).expect("connected");
        return (connect(here, there), connect(there, here));
    }
    let (a, b) =
        (Endpoint::new(here).expect("an endpoint"), Endpoint::new(there).expect("an endpoint"));
    a.connect(&b.address()).expect("connected");
    b.connect(&a.address()).expect("connected");
    (a, b)
}

/// The lanes of one end, before they are attached.
type Change = dyn Fn(&mut Lanes);

/// An interface of `self` reaches only itself, so both ends are the same.
fn ends_of_self(limits: Limits, change: &Change) -> [End; 2] {
    let Opened { worker, lanes } = open(&[SELF]);
    let (domain, interface) = &lanes[0];
    let (endpoint, _) = connect(interface, interface);
    let tags = Tags::new(limits);
    tags.serve(interface).expect("a handler");
    let lane = Lane::new(endpoint, interface, domain);
    let mut lanes_of_link = Lanes::new(lane.clone(), vec![lane]);
    change(&mut lanes_of_link);
    let link = tags.attach(lanes_of_link).expect("a link");
    tags.connect(&link, link.opening());
    let interfaces = vec![interface.clone()];
    let second = End {
        worker: Worker::new(),
        tags: tags.clone(),
        link: link.clone(),
        _interfaces: interfaces.clone(),
    };
    [End { worker, tags, link, _interfaces: interfaces }, second]
}

/// Two connected ends. `change` changes the lanes of both.
pub(crate) fn ends_with(
    messages: Name,
    bulk: &[Name],
    limits: Limits,
    change: &Change,
) -> [End; 2] {
    // A lane of the same transport and device is the same interface.
    if messages == SELF {
        return ends_of_self(limits, change);
    }
    let mut names = vec![messages];
    names.extend(bulk.iter().filter(|&&name| name != messages));
    let sides = [open(&names), open(&names)];
    let endpoints: Vec<_> =
        sides[0].lanes.iter().zip(&sides[1].lanes).map(|(a, b)| connect(&a.1, &b.1)).collect();
    let mut number = 0;
    let ends = sides.map(|side| {
        let (domain, interface) = &side.lanes[0];
        let tags = if messages == TAGGED {
            Tags::matched_by(interface, domain, 0, limits).expect("a device that matches")
        } else {
            let tags = Tags::new(limits);
            tags.serve(interface).expect("a handler");
            tags
        };
        let lane = |at: usize| {
            let endpoint =
                if number == 0 { endpoints[at].0.clone() } else { endpoints[at].1.clone() };
            Lane::new(endpoint, &side.lanes[at].1, &side.lanes[at].0)
        };
        let mut further = 1..;
        let mut at = |name: &Name| if *name == messages { Some(0) } else { further.next() };
        let bulk = bulk.iter().filter_map(|name| at(name).map(lane)).collect();
        let mut lanes = Lanes::new(lane(0), bulk);
        number += 1;
        change(&mut lanes);
        let link = tags.attach(lanes).expect("a link");
        let interfaces: Vec<_> = side.lanes.into_iter().map(|(_, interface)| interface).collect();
        for interface in &interfaces {
            let tags = tags.clone();
            interface.set_error_handler(move |_| tags.check());
        }
        End { worker: side.worker, tags, link, _interfaces: interfaces }
    });
    ends[0].tags.connect(&ends[0].link, ends[1].link.opening());
    ends[1].tags.connect(&ends[1].link, ends[0].link.opening());
    ends
}

pub(crate) fn ends(messages: Name, bulk: &[Name]) -> [End; 2] {
    ends_with(messages, bulk, Limits::default(), &|_| {})
}

/// Makes progress on both ends until `done`.
pub(crate) fn until(ends: &mut [End; 2], what: &str, mut done: impl FnMut(&[End; 2]) -> bool) {
    let start = Instant::now();
    while !done(ends) {
        for end in &mut *ends {
            end.worker.progress();
        }
        assert!(start.elapsed() < DEADLINE, "{what}: {:?} {:?}", ends[0].tags, ends[1].tags);
    }
}

pub(crate) fn result(ends: &mut [End; 2], request: &Request) -> TagResult {
    until(ends, "a result", |_| request.poll().is_some());
    request.poll().expect("there")
}

/// Makes progress for a while, after which whatever was to happen without the user has happened.
pub(crate) fn settle(ends: &mut [End; 2]) {
    for _ in 0..50 {
        for end in &mut *ends {
            end.worker.progress();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (seed.wrapping_mul(31).wrapping_add(at.wrapping_mul(0x9e37)) >> 7) as u8)
        .collect()
}

pub(crate) fn buffer(bytes: &[u8]) -> Buffer {
    Buffer::from_bytes(bytes).expect("memory")
}
