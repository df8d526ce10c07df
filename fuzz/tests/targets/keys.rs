//! Keys of any bytes in use: an operation reaches what its key names, or nothing.

use std::panic::AssertUnwindSafe;

use barewire::{
    Access, Domain, Endpoint, FlushMode, Interface, InterfaceConfig, Memory, PostError, Posted, Worker,
};
use bolero::check;

use crate::script::{Script, bytes_to};

/// Bytes of the memory that keys are to.
const LENGTH: usize = 256;

struct Ends {
    domain: Domain,
    worker: Worker,
    interface: Interface,
    /// The first one posts; over `tcp` the second one is its peer.
    endpoints: Vec<Endpoint>,
    source: Memory,
    target: Memory,
    /// Of the same domain, with another key.
    bystander: Memory,
}

fn open(transport: &str) -> Ends {
    let domain = Domain::open(transport, if transport == "tcp" { "lo" } else { "memory" }).unwrap();
    let mut worker = Worker::new();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
    let endpoints = connect(transport, &interface);
    let all = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    // Keys of `self` count up, so a changed key may be another region's: its rights must hold then.
    let others = if transport == "self" { Access::LOCAL_WRITE } else { all };
    let [source, target, bystander] =
        [others, all, others].map(|access| domain.allocate(LENGTH, access).unwrap());
    Ends { domain, worker, interface, endpoints, source, target, bystander }
}

fn connect(transport: &str, interface: &Interface) -> Vec<Endpoint> {
    let (device, address) = (interface.device_address(), interface.address());
    if transport != "tcp" {
        return vec![Endpoint::connect_to_interface(interface, &device, &address).unwrap()];
    }
    let (here, there) = (Endpoint::new(interface).unwrap(), Endpoint::new(interface).unwrap());
    here.connect(&device, &there.address()).unwrap();
    there.connect(&device, &here.address()).unwrap();
    vec![here, there]
}

impl Ends {
    /// Puts with the key of `key`'s bytes, and waits for the outcome.
    fn put(&mut self, key: &[u8], length: usize, at: u64) {
        let Ok(key) = self.domain.unpack_key(key) else { return };
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

/// Puts through changed keys to changed addresses, over the transport.
fn any_keys(transport: &str) {
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
    any_keys("self");
}

#[test]
fn any_keys_of_shm() {
    any_keys("shm");
}

#[test]
fn any_keys_of_cma() {
    any_keys("cma");
}

#[test]
fn any_keys_of_tcp() {
    any_keys("tcp");
}
