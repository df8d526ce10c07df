//! Selection of transport and device.

use crate::error::Error;
use barewire::transport::tcp;
use barewire::{Absent, Attributes, Flags, InterfaceConfig, TransportId, components};

/// The default device of `tcp`: that of the route to the peer.
pub(crate) const ROUTE: &str = "route";

/// A transport on a device.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) transport: TransportId,
    pub(crate) device: String,
    pub(crate) attributes: Attributes,
}

impl Choice {
    /// Returns `true` if it connects two processes; otherwise it only reaches the process itself.
    pub(crate) fn joins_processes(&self) -> bool {
        self.attributes.flags.contains(Flags::INTER_PROCESS)
    }

    fn follow_route(&mut self) {
        ROUTE.clone_into(&mut self.device);
    }
}

impl Choice {
    /// Returns `true` for the software HCA, whose times do not represent hardware.
    pub(crate) fn is_emulator(&self) -> bool {
        self.device.starts_with("soft")
    }
}

/// Every transport on every device.
fn all() -> Vec<Choice> {
    let mut choices = Vec::new();
    for device in components().into_iter().flat_map(|component| component.devices) {
        for transport in device.transports {
            choices.push(Choice {
                transport: transport.transport(),
                device: device.name.clone(),
                attributes: transport.attributes,
            });
        }
    }
    choices
}

/// Every transport on every device, `tcp` once, and the absent ones.
pub(crate) fn everything() -> (Vec<Choice>, Vec<Absent>) {
    let mut choices = all();
    choices
        .iter_mut()
        .filter(|choice| choice.transport == TransportId::Tcp)
        .for_each(Choice::follow_route);
    choices.dedup_by(|next, one| (&next.transport, &next.device) == (&one.transport, &one.device));
    (choices, components().into_iter().flat_map(|component| component.absent).collect())
}

/// The transports between processes, each on its first device.
pub(crate) fn joining() -> Vec<Choice> {
    let mut choices = all();
    choices.retain(Choice::joins_processes);
    choices
        .iter_mut()
        .filter(|choice| choice.transport == TransportId::Tcp)
        .for_each(Choice::follow_route);
    let mut seen = Vec::new();
    choices.retain(|choice| {
        let new = !seen.contains(&choice.transport);
        seen.push(choice.transport);
        new
    });
    choices
}

/// The transports between processes over this device.
pub(crate) fn over(device: &str) -> Result<Vec<Choice>, Error> {
    let mut choices = all();
    choices.retain(Choice::joins_processes);
    let known: Vec<String> = choices.iter().map(|choice| choice.device.clone()).collect();
    choices.retain(|choice| choice.device == device || is_first_port(&choice.device, device));
    if choices.is_empty() {
        return Err(unknown("device", device, known.iter().map(String::as_str)));
    }
    Ok(choices)
}

/// The transport with this name on the named device, or on its first.
pub(crate) fn find(transport: &str, device: Option<&str>) -> Result<Choice, Error> {
    if transport == TransportId::Tcp.name() {
        // Addresses are devices as well; opening one checks whether this host has it.
        return Ok(Choice {
            transport: TransportId::Tcp,
            device: device.unwrap_or(ROUTE).to_owned(),
            attributes: tcp::attributes(&InterfaceConfig::default()),
        });
    }
    let choices = all();
    let of_transport: Vec<&Choice> =
        choices.iter().filter(|choice| choice.transport.name() == transport).collect();
    if of_transport.is_empty() {
        let absent = components().into_iter().flat_map(|component| component.absent);
        let reason =
            absent.into_iter().find(|absent| absent.what == transport).map(|absent| absent.reason);
        return Err(match reason {
            Some(reason) => Error::Local(format!(
                "transport '{transport}' is absent: {reason}; there are {}",
                list(choices.iter().map(|choice| choice.transport.name()))
            )),
            None => unknown_transport(transport),
        });
    }
    let fits = |choice: &&&Choice| device.is_none_or(|device| device == choice.device);
    let of_device =
        |choice: &&&Choice| device.is_some_and(|device| is_first_port(&choice.device, device));
    let found = of_transport.iter().find(fits).or_else(|| of_transport.iter().find(of_device));
    match found {
        Some(choice) => Ok((*choice).clone()),
        None => Err(unknown(
            &format!("device of {transport}"),
            device.unwrap_or_default(),
            of_transport.iter().map(|choice| choice.device.as_str()),
        )),
    }
}

/// The error about a name that no transport has. It lists those that are absent here as well.
pub(crate) fn unknown_transport(name: &str) -> Error {
    unknown("transport", name, TransportId::ALL.iter().map(|id| id.name()))
}

/// The error about a name of the command line that is none of `known`. Like clap's, it has a tip if
/// one of them is similar.
pub(crate) fn unknown<'a>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Error {
    /// From where on clap calls names similar.
    const SIMILAR: f64 = 0.7;
    let scored = known.clone().map(|known| (strsim::jaro(name, known), known));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let tip = best.filter(|(score, _)| *score > SIMILAR);
    let tip = tip.map_or(String::new(), |(_, known)| format!("; tip: '{known}' is similar"));
    Error::Usage(format!("unknown {what} '{name}': there are {}{tip}", list(known)))
}

/// Returns `true` if `port` is the first port of the device with this name: `soft0:1` of `soft0`.
pub(crate) fn is_first_port(port: &str, device: &str) -> bool {
    port.strip_prefix(device) == Some(":1")
}

/// Requires a key for processes that did not start each other.
pub(crate) fn need_key(transport: TransportId) -> Result<(), Error> {
    if transport != TransportId::Tcp {
        return Ok(());
    }
    match key()? {
        Some(_) => Ok(()),
        None => Err(Error::Usage(
            "tcp between two processes needs a key to keep strangers out: make one with \
             'barewire key job.key' and give both --key-file job.key"
                .into(),
        )),
    }
}

/// The job key, if one was given.
pub(crate) fn key() -> Result<Option<tcp::Key>, Error> {
    tcp::Key::from_env().map_err(|error| Error::Local(error.to_string()))
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    unique.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named_beside_what_is() {
        let error = find("carrier_pigeon", None).unwrap_err().to_string();
        assert!(error.contains("'carrier_pigeon'") && error.contains("rc_mlx5"), "{error}");
        assert!(!error.contains("similar"), "{error}");
        let error = find("shmm", None).unwrap_err();
        assert!(error.to_string().ends_with("; tip: 'shm' is similar"), "{error}");
        assert_eq!(error.exit_code(), 2);
        let error = find("rc_mlx5", Some("soft9:9")).unwrap_err().to_string();
        assert!(
            error.contains("device of rc_mlx5 'soft9:9'") && error.contains("soft0:1"),
            "{error}"
        );
        assert_eq!(find("rc_mlx5", None).unwrap().device, "soft0:1");
    }

    #[test]
    fn the_demo_has_something_to_run_on() {
        let transports: Vec<_> = joining().into_iter().map(|choice| choice.transport).collect();
        assert!(transports.contains(&TransportId::RcMlx5), "{transports:?}");
        assert!(!transports.contains(&TransportId::Self_), "{transports:?}");
    }
}
