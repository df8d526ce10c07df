//! Details on an unresponsive peer: the retries, the route, and the port's counters.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use barewire_verbs::PortState;

use super::{Domain, PortAddress};
use crate::transport::common::registered::Domain as _;

/// Returns the details in one line. `tried` describes the retries and their settings.
pub(crate) fn unanswered(domain: &Domain, tried: &str) -> String {
    let number = domain.port().number;
    let mut text = format!("{tried}, from {} on {}", PortAddress::of(domain), domain.device());
    if let Some(trouble) = port(domain) {
        let _ = write!(text, "; {trouble}");
    }
    let device = domain.device().split(':').next().unwrap_or_default();
    let folder = format!("/sys/class/infiniband/{device}/ports/{number}/hw_counters");
    let counted = errors(Path::new(&folder));
    if !counted.is_empty() {
        let _ = write!(text, "; {folder} has {}", counted.join(", "));
    }
    text
}

/// Returns the problem of the local port, if it has one.
pub(crate) fn port(domain: &Domain) -> Option<String> {
    let device = domain.device();
    match domain.context().query_port(domain.port().number) {
        Ok(port) if port.state == PortState::Active => None,
        Ok(port) => Some(format!("the port of {device} is {:?}: bring its link up", port.state)),
        Err(error) => Some(format!("the port of {device} cannot be queried: {error}")),
    }
}

/// Returns the error counters of a port that are not zero.
fn errors(folder: &Path) -> Vec<String> {
    const TROUBLE: [&str; 6] = ["err", "timeout", "retry", "seq", "rnr", "discard"];
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let value: u64 = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
            (value > 0 && TROUBLE.iter().any(|part| name.contains(part)))
                .then(|| format!("{name} {value}"))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_trouble_are_named() {
        let folder = std::env::temp_dir().join(format!("barewire-counters-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, value) in [
            ("local_ack_timeout_err", "3\n"),
            ("rx_packets", "9\n"),
            ("out_of_sequence", "0\n"),
            ("rnr_err", "x"),
        ] {
            fs::write(folder.join(name), value).unwrap();
        }
        assert_eq!(errors(&folder), ["local_ack_timeout_err 3"]);
        fs::remove_dir_all(&folder).unwrap();
        assert!(errors(&folder).is_empty());
    }
}
