//! Data of another process: addresses, keys, messages of a control connection.

use std::iter;

use barewire::PeerAddress;
use barewire::address::{DeviceAddress, EndpointAddress, InterfaceAddress};
use barewire_tcp::frames::Received;
use barewire_wireup::address::WorkerAddress;
use bolero::check;

use crate::script::bytes_to;

/// Bytes of the longest message.
const LIMIT: usize = 64 << 10;

#[test]
fn any_addresses() {
    check!().with_generator(bytes_to(80)).for_each(|bytes| {
        let device = DeviceAddress::from_bytes(bytes);
        if let Ok(device) = &device {
            assert!(!device.to_string().is_empty());
        }
        let parsed = [
            device.map(|address| (address.to_bytes(), address.transport())),
            InterfaceAddress::from_bytes(bytes)
                .map(|address| (address.to_bytes(), address.transport())),
            EndpointAddress::from_bytes(bytes)
                .map(|address| (address.to_bytes(), address.transport())),
            PeerAddress::from_bytes(bytes).map(|address| (address.to_bytes(), address.transport())),
        ];
        // At most one kind accepts the bytes, and encodes them unchanged.
        assert!(parsed.iter().filter(|parsed| parsed.is_ok()).count() <= 1);
        for parsed in parsed {
            match parsed {
                Ok((back, transport)) => assert!(back == *bytes && transport.code() == bytes[4]),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    });
}

/// Messages that `parts` have, whatever the bytes, and the error that ends them.
fn messages<'a>(parts: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Option<String>) {
    let (mut received, mut found) = (Received::new(LIMIT), Vec::new());
    for part in parts {
        received.add(part).unwrap();
        loop {
            match (received.take(), received.expected()) {
                (Ok(Some(message)), _) => found.push(message),
                (Ok(None), Ok(length)) => {
                    assert!(length > received.waiting() && length <= 4 + LIMIT);
                    break;
                }
                (Err(error), _) | (_, Err(error)) => return (found, Some(error.to_string())),
            }
        }
    }
    (found, None)
}

/// The bytes as lengths and messages: few random bytes are a length.
fn framed(mut bytes: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let (message, rest) = rest.split_at(rest.len().min(length.into()));
        stream.extend_from_slice(&u32::from(length).to_le_bytes());
        stream.extend_from_slice(message);
        bytes = rest;
    }
    stream
}

#[test]
fn any_frames() {
    check!().with_generator(bytes_to(256)).for_each(|bytes| {
        for stream in [bytes, &framed(bytes)] {
            let whole = messages(iter::once(&stream[..]));
            assert!(whole.0.iter().all(|message| message.len() <= LIMIT));
            assert_eq!(messages(stream.chunks(7)), whole);
            assert_eq!(messages(stream.chunks(1)), whole);
        }
    });
}

#[test]
fn any_worker_addresses() {
    check!().with_generator(bytes_to(512)).for_each(|bytes| {
        // Random bytes rarely have the header, so it is tested with and without one.
        let mut framed = b"bw\x01W".to_vec();
        framed.extend_from_slice(&(bytes.len() as u16 + 6).to_be_bytes());
        framed.extend_from_slice(bytes);
        for bytes in [bytes, &framed] {
            match WorkerAddress::from_bytes(bytes) {
                Ok(address) => {
                    assert_eq!(address.as_bytes(), bytes.as_slice());
                    assert!(address.entries().count() <= bytes.len() / 10);
                    assert_eq!(address.to_string().parse(), Ok(address));
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    });
}
