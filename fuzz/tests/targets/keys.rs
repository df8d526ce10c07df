//! Operations with keys of any bytes: each accesses the memory of its key, or none.

use std::panic::AssertUnwindSafe;

use barewire::{
    Access, DeviceId, Domain, Endpoint, FlushMode, Interface, InterfaceConfig, Memory, PostError,
    Posted, TransportId, Worker,
};
use bolero::check;

use crate::script::{Script, bytes_to};

/// Size of the memory of a key.
const LENGTH: usize = 256;

struct Ends {
    domain: Domain,
    worker: Worker,
    interface: Interface,
    /// The first one posts; over `tcp` the second one is its peer.
    endpoints: Vec<Endpoint>,
    source: Memory,
    target: Memory,
    /// Memory of the same domain with another key.
    bystander: Memory,
}

fn open(transport: TransportId) -> Ends {
    let name = if transport == TransportId::Tcp { "lo" } else { "memory" };
    let domain = Domain::open(&DeviceId::new(transport, name)).unwrap();
    let mut worker = Worker::new();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
    let endpoints = connect(transport, &interface);
    let all = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    // Keys of `self` are numbered consecutively, so a changed key may name another region, whose
    // rights must hold.
    let others = if transport == TransportId::Self_ { Access::LOCAL_WRITE } else { all };
    let [source, target, bystander] =
        [others, all, others].map(|access| domain.allocate(LENGTH, access).unwrap());
    Ends { domain, worker, interface, endpoints, source, target, bystander }
}

fn connect(transport: TransportId, interface: &Interface) -> Vec<Endpoint> {
    if transport != TransportId::Tcp {
        return vec![interface.connect(&interface.address()).unwrap()];
    }
    let (here, there) = (Endpoint::new(interface).unwrap(), Endpoint::new(interface).unwrap());
    here.connect(&there.address()).unwrap();
    there.connect(&here.address()).unwrap();
    vec![here, there]
}

impl Ends {
    /// Puts with the key in the bytes of `key`, and waits for the outcome.
    fn put(&mut self, key: &[u8], length: usize, at: u64) {
        let Ok(key) = self.domain.unpack_key(key) else { return };
        // Without an endpoint the key leads to the memory of its region, or to none.
        if let Ok(pointer) = key.pointer() {
            assert!(pointer.size() <= LENGTH);
            assert!(pointer.locate(at, length).is_none() || length <= LENGTH);
        }
        let slice = [self.source.slice(0, length).unwrap()];
        let mut posted = false;
        loop {
            let result = if posted {
                self.endpoints[0].flush(FlushMode::Remote, None)
            } else {
                self.endpoints[0].put_zcopy(&slice, at, &key, None)
            };
            match result {
                Ok(Posted::Done) if posted => return,
                Ok(_) => posted = true,
                Err(PostError::NoResource) => {}
                Err(_) => return,
            }
            self.worker.progress();
        }
    }
}

/// Puts with changed keys to changed addresses over the transport.
fn any_keys(transport: TransportId) {
    let mut ends = AssertUnwindSafe(open(transport));
    let zeros = vec![0; LENGTH];
    check!().with_generator(bytes_to(64)).for_each(|bytes| {
        let ends: &mut Ends = &mut ends;
        let mut script = Script::new(bytes);
        ends.source.write(0, &[script.byte() | 1; LENGTH]).unwrap();
        let mut key = ends.target.pack_key();
        script.mutate(&mut key);
        let address = match script.byte() & 3 {
            0 => ends.bystander.address(),
            1 => ends.source.address(),
            _ => ends.target.address(),
        };
        let at = address.wrapping_add(u64::from(script.number() % 300)).wrapping_sub(20);
        let length = usize::from(script.byte());
        ends.put(&key, length, at);
        let mut found = vec![0; LENGTH];
        ends.bystander.read(0, &mut found).unwrap();
        assert_eq!(found, zeros, "memory of another key was written");
        if ends.endpoints[0].error().is_some() {
            ends.endpoints = connect(transport, &ends.interface);
        }
    });
}

#[test]
fn any_keys_of_self() {
    any_keys(TransportId::Self_);
}

#[test]
fn any_keys_of_shm() {
    any_keys(TransportId::Shm);
}

#[test]
fn any_keys_of_cma() {
    any_keys(TransportId::Cma);
}

#[test]
fn any_keys_of_tcp() {
    any_keys(TransportId::Tcp);
}
