//! `Debug` output, which is written to logs, contains no secrets.

use barewire::{Access, InterfaceConfig};

use crate::support::Pair;

/// The forms in which `Debug` would show the secret at the end of an address.
fn forms(address: &[u8]) -> Vec<String> {
    let secret = u128::from_be_bytes(*address.last_chunk().unwrap());
    let halves = [secret as u64, (secret >> 64) as u64].map(u128::from);
    let forms = |value: u128| [format!("{value}"), format!("{value:x}"), format!("{value:X}")];
    [secret, halves[0], halves[1]].into_iter().flat_map(forms).collect()
}

fn check(secret: &[u8], shown: &str) {
    for form in forms(secret) {
        assert!(!shown.contains(&form), "the secret {form} is in {shown}");
    }
}

#[test]
fn debug_of_shm_shows_none() {
    let pair = Pair::over_shm(&InterfaceConfig::default());
    let (memory, key) = pair.target(64, Access::all());
    let side = &pair.client;
    let address = side.interface.address();
    let shown = format!(
        "{address:?} {:?} {:?} {:?} {memory:?} {key:?}",
        side.interface, side.endpoint, pair.worker
    );
    check(&address.to_bytes(), &shown);
}

#[test]
fn debug_of_cma_addresses_shows_none() {
    let pair = Pair::over_cma(&InterfaceConfig::default());
    let interface = &pair.client.interface;
    let address = interface.address();
    check(&address.to_bytes(), &format!("{address:?} {interface:?} {:?}", pair.worker));
}
