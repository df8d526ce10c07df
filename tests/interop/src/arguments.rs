//! The command line.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use crate::Result;
use crate::link::Plan;

pub(crate) const USAGE: &str = "\
usage: barewire-interop DEVICE --listen ADDRESS --port PORT
       barewire-interop DEVICE --connect ADDRESS --port PORT [--operations N] [--seed N]

DEVICE is 'software' (with --address ADDRESS, where the software HCA shall be) or the name of a kernel device such as rxe0.
--operations: of each kind and direction, 500 if not given.";

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) device: String,
    /// Address of the software HCA.
    pub(crate) address: Option<IpAddr>,
    pub(crate) role: Role,
}

/// Which side listens. The connecting side selects the operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    Listen { address: IpAddr, port: u16 },
    Connect { address: IpAddr, port: u16, plan: Plan },
}

impl Arguments {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let device = words.next().ok_or("no device given")?;
        let (mut address, mut listen, mut connect, mut port) = (None, None, None, None);
        let mut plan = Plan { operations: 500, seed: 1 };
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name} without a value"))?;
            match name.as_str() {
                "--address" => address = Some(read(&name, &value)?),
                "--listen" => listen = Some(read(&name, &value)?),
                "--connect" => connect = Some(read(&name, &value)?),
                "--port" => port = Some(read(&name, &value)?),
                "--operations" => plan.operations = read(&name, &value)?,
                "--seed" => plan.seed = read(&name, &value)?,
                _ => return Err(format!("do not know {name}").into()),
            }
        }
        let port = port.ok_or("no --port given")?;
        let role = match (listen, connect) {
            (Some(address), None) => Role::Listen { address, port },
            (None, Some(address)) => Role::Connect { address, port, plan },
            _ => return Err("one of --listen and --connect must be given".into()),
        };
        Ok(Self { device, address, role })
    }
}

fn read<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T> {
    value.parse().map_err(|error| format!("{name} {value}: {error}").into())
}
