//! What another process sends: addresses, keys, messages of a control connection.

use barewire::{DeviceAddress, EndpointAddress, InterfaceAddress};
use barewire_cli::channel::{LIMIT, Parsed, parse};
use bolero::check;

use crate::script::bytes_to;

#[test]
fn any_addresses() {
    check!().with_generator(bytes_to(64)).for_each(|bytes| {
        let device = DeviceAddress::from_bytes(bytes);
        if let Ok(device) = &device {
            assert!(!device.to_string().is_empty());
        }
        let parsed = [
            device.map(|address| (address.to_bytes(), address.transport())),
            InterfaceAddress::from_bytes(bytes).map(|address| (address.to_bytes(), address.transport())),
            EndpointAddress::from_bytes(bytes).map(|address| (address.to_bytes(), address.transport())),
        ];
        // One kind at most, and that as it came.
        assert!(parsed.iter().filter(|parsed| parsed.is_ok()).count() <= 1);
        for parsed in parsed {
            match parsed {
                Ok((back, transport)) => assert!(back == *bytes && !transport.is_empty()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    });
}

#[test]
fn any_frames() {
    check!().with_generator(bytes_to(256)).for_each(|bytes| {
        let mut rest = bytes.as_slice();
        loop {
            match parse(rest) {
                Ok(Parsed::Message(message)) => rest = &rest[4 + message.len()..],
                Ok(Parsed::Need(length)) => break assert!(length > rest.len() && length <= 4 + LIMIT),
                Err(error) => break assert!(!error.to_string().is_empty()),
            }
        }
    });
}
