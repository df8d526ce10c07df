use barewire::Place;
use proptest::prelude::*;

use super::*;

fn entry(id: TransportId, device: u16, fill: u8) -> Entry {
    let attributes = Summary {
        overhead_ns: 40.0,
        latency_ns: 800.0,
        bandwidth: 12.5e9,
        priority: 3,
        max_message: 8256,
        abilities: Abilities::MESSAGES.union(Abilities::TO_ENDPOINT),
        place: if id == TransportId::Self_ { Place::Process } else { Place::Network },
    };
    let bodies = (id != TransportId::Self_).then(|| {
        let device = vec![fill; DeviceAddress::body_length(id)];
        let interface = vec![!fill; InterfaceAddress::body_length(id)];
        (
            DeviceAddress::from_body(id, &device).unwrap(),
            InterfaceAddress::from_body(id, &interface).unwrap(),
        )
    });
    Entry {
        transport: Some(id),
        code: id as u8,
        device,
        summary: attributes.rounded(),
        device_address: bodies.map(|(device, _)| device),
        interface_address: bodies.map(|(_, interface)| interface),
        control: (id == TransportId::Tcp).then(|| NonZeroU16::new(513).unwrap()),
    }
}

fn every_transport() -> Vec<Entry> {
    let ids = [
        TransportId::Self_,
        TransportId::Shm,
        TransportId::Cma,
        TransportId::Tcp,
        TransportId::RcMlx5,
    ];
    ids.into_iter().zip(0..).map(|(id, device)| entry(id, device, 0x5a)).collect()
}

fn sample() -> WorkerAddress {
    WorkerAddress::new(Uuid([9; 16]), &every_transport())
}

#[test]
fn self_shm_cma_tcp_and_an_rc_device_take_at_most_220_bytes() {
    let length = sample().as_bytes().len();
    assert!(length <= 220, "{length}");
    let network = sample().scoped(Scope::Network);
    assert_eq!(network.scope(), Scope::Network);
    assert!(network.as_bytes().len() < length);
    assert!(network.entries().all(|entry| entry.transport != Some(TransportId::Self_)));
}

#[test]
fn golden_bytes_both_ways() {
    let address = WorkerAddress::new(Uuid([9; 16]), &[entry(TransportId::Self_, 0, 0)]);
    let mut golden = b"bw\x01W\x00\x21".to_vec();
    golden.extend([9; 16]);
    // Flags; the length, `self`; 40 ns, 800 ns, 12.5 GB/s, priority 3, 129 x 64 bytes, abilities.
    golden.extend([0, 9, 1, 85, 90, 153, 3, 0, 129, 0, 0b110]);
    golden[5] = golden.len() as u8;
    assert_eq!(address.as_bytes(), golden);
    assert_eq!(WorkerAddress::from_bytes(&golden), Ok(address));
}

#[test]
fn a_device_address_is_written_once() {
    let (one, two) = (entry(TransportId::RcMlx5, 0, 7), entry(TransportId::RcVerbs, 0, 7));
    let shared = WorkerAddress::new(Uuid([0; 16]), &[one.clone(), two.clone()]);
    assert_eq!(shared.entries().collect::<Vec<_>>(), [one.clone(), two]);
    let apart = WorkerAddress::new(Uuid([0; 16]), &[one, entry(TransportId::RcVerbs, 1, 7)]);
    // A port and the network namespace.
    assert_eq!(apart.as_bytes().len() - shared.as_bytes().len(), 24 + 6);
    assert_eq!(apart.entries().map(|entry| entry.device).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn an_unknown_transport_is_kept_and_skipped() {
    let mut bytes = sample().as_bytes().to_vec();
    let unknown = [12, 200, 1, 1, 1, 1, 0, 1, 0, 0, 0xaa, 0xbb, 0xcc];
    bytes.extend(unknown);
    let length = bytes.len() as u16;
    bytes[4..6].copy_from_slice(&length.to_be_bytes());
    let address = WorkerAddress::from_bytes(&bytes).unwrap();
    assert_eq!(address.as_bytes(), bytes);
    let last = address.entries().last().unwrap();
    assert_eq!((last.transport, last.code, last.device), (None, 200, 5));
    assert_eq!(address.entries().count(), 6);
}

#[test]
fn every_defect_is_named() {
    let bytes = sample().as_bytes().to_vec();
    for cut in 0..bytes.len() {
        assert!(
            matches!(WorkerAddress::from_bytes(&bytes[..cut]), Err(AddressError::Truncated { .. })),
            "{cut}"
        );
    }
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        WorkerAddress::from_bytes(&bytes).unwrap_err()
    };
    assert_eq!(with(0, b'x'), AddressError::Foreign);
    assert_eq!(with(2, 2), AddressError::Version { found: 2 });
    assert_eq!(with(3, b'D'), AddressError::Kind(b'D'));
    assert_eq!(with(5, 3), AddressError::Field("length"));
    assert_eq!(with(22, 2), AddressError::Field("flags"));
    assert_eq!(with(23, 0x89), AddressError::Field("device of the first entry"));
    assert_eq!(with(25, 255), AddressError::Field("overhead"));
    assert_eq!(with(24, 3), AddressError::Length { entry: 0, expected: 41, found: 9 });
    let long = [&bytes[..], &[0]].concat();
    assert_eq!(WorkerAddress::from_bytes(&long), Err(AddressError::Trailing(1)));
    let (front, rest) = WorkerAddress::split_from(&long).unwrap();
    assert_eq!((front, rest), (sample(), &[0][..]));
    assert_eq!("b".parse::<WorkerAddress>(), Err(AddressError::Text(1)));
    assert_eq!("bx".parse::<WorkerAddress>(), Err(AddressError::Text(1)));
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let id = prop::sample::select(vec![
        TransportId::Self_,
        TransportId::Shm,
        TransportId::Cma,
        TransportId::Tcp,
        TransportId::RcMlx5,
        TransportId::RcVerbs,
        TransportId::UdVerbs,
    ]);
    (id, any::<u8>(), 0.0f64..1e6, 0.0f64..1e7, 0.0f64..1e13, 0usize..1 << 23, any::<u16>())
        .prop_map(|(id, fill, overhead_ns, latency_ns, bandwidth, max_message, bits)| {
            let mut entry = entry(id, 0, fill);
            entry.summary = Summary {
                overhead_ns,
                latency_ns,
                bandwidth,
                max_message,
                abilities: Abilities::from_bits(bits),
                ..entry.summary
            }
            .rounded();
            entry
        })
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        entries in prop::collection::vec((any_entry(), any::<bool>()), 0..40),
        uuid: [u8; 16],
        tail in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let mut device = 0;
        let entries: Vec<_> = entries.into_iter().enumerate().map(|(at, (mut entry, same))| {
            device += u16::from(at > 0 && !same);
            entry.device = device;
            entry
        }).collect();
        let address = WorkerAddress::new(Uuid(uuid), &entries);
        prop_assert_eq!(address.entries().collect::<Vec<_>>(), entries);
        prop_assert_eq!(address.uuid(), Uuid(uuid));
        let bytes = [address.as_bytes(), &tail].concat();
        let (read, rest) = WorkerAddress::split_from(&bytes).unwrap();
        prop_assert_eq!((&read, rest), (&address, &tail[..]));
        prop_assert_eq!(read.to_string().parse(), Ok(address));
    }

    #[test]
    fn one_changed_byte_is_read_or_named(at in 0usize..200, value: u8) {
        let mut bytes = sample().as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = value;
        if let Ok(address) = WorkerAddress::from_bytes(&bytes) {
            prop_assert_eq!(address.as_bytes(), bytes);
        }
    }
}
