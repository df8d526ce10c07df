//! The devices that NCCL may use: ports of adapters, and merged ones.

use core::ffi::c_int;
use std::ffi::{CStr, CString};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use barewire_channel::mlx5::Context;
use barewire_channel::{MAX_RAILS, Rail, Rails, RailsError};
use barewire_tcp::{HostAddress, interfaces};

use crate::log;

/// Names of the devices to use, separated by commas, such as `mlx5_0:1,mlx5_1:1` or `soft0,soft1`.
/// By default all adapters of the machine; software devices only if they are named.
pub const VARIABLE: &str = "BAREWIRE_NCCL_DEVICES";

/// A device, as NCCL counts them. It lives as long as the process: NCCL keeps its strings.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: CString,
    /// Its directory in sysfs.
    pub(crate) pci_path: Option<CString>,
    pub(crate) guid: u64,
    /// Mbit/s.
    pub(crate) speed: c_int,
    pub(crate) port: c_int,
    /// The numbers of the devices of which it consists.
    pub(crate) members: Vec<usize>,
    pub(crate) rails: Rails,
    contexts: Vec<Member>,
    /// The address on which it listens.
    pub(crate) listen: HostAddress,
}

/// An open device with its name and speed.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    context: Context,
    /// Mbit/s.
    speed: c_int,
}

static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

fn devices() -> MutexGuard<'static, Vec<&'static Device>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names instead of those in the environment.
static WANTED: OnceLock<String> = OnceLock::new();

/// Sets the names of the devices, as [`VARIABLE`] does, for programs that link this library.
/// Without effect once a name was set or NCCL has called `init`.
pub fn use_devices(names: &str) {
    let _ = WANTED.set(names.to_owned());
}

/// Why there are no devices.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error("this machine has no mlx5 device; set {VARIABLE}=soft0 to use a software device")]
    None,
    #[error("{VARIABLE}: there is no device {0}: {1}; software devices are soft0, soft1 and so on")]
    Unknown(String, String),
    #[error("{VARIABLE}: {0} is named twice")]
    Twice(String),
    #[error("there is no device with number {0}")]
    Number(c_int),
    #[error("1 to 8 different devices can be merged")]
    Count,
    #[error(transparent)]
    Rails(#[from] RailsError),
}

/// Finds the devices, the first time that it is called.
pub(crate) fn discover() -> Result<(), DeviceError> {
    let mut known = devices();
    if !known.is_empty() {
        return Ok(());
    }
    let named = WANTED.get().cloned().or_else(|| std::env::var(VARIABLE).ok());
    let names = match named {
        Some(names) => names.split(',').map(|name| name.trim().to_owned()).collect(),
        None => of_machine(),
    };
    if names.is_empty() {
        return Err(DeviceError::None);
    }
    let mut found: Vec<&'static Device> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(DeviceError::Twice(name.clone()));
        }
        let device = open(name, at)?;
        log::info(format_args!("device {at}: {name}, {} Mbit/s", device.speed));
        found.push(Box::leak(Box::new(device)));
    }
    *known = found;
    Ok(())
}

/// The number of devices.
pub(crate) fn count() -> usize {
    devices().len()
}

/// The device with this number.
pub(crate) fn get(number: c_int) -> Result<&'static Device, DeviceError> {
    let found = usize::try_from(number).ok().and_then(|at| devices().get(at).copied());
    found.ok_or(DeviceError::Number(number))
}

/// Merges devices to a new one. Returns its number.
pub(crate) fn merge(numbers: &[c_int]) -> Result<usize, DeviceError> {
    let parts = numbers.iter().map(|number| get(*number)).collect::<Result<Vec<_>, _>>()?;
    let mut members: Vec<usize> = Vec::new();
    let mut contexts: Vec<Member> = Vec::new();
    for part in &parts {
        for (member, context) in part.members.iter().zip(&part.contexts) {
            if members.contains(member) {
                return Err(DeviceError::Count);
            }
            members.push(*member);
            contexts.push(context.clone());
        }
    }
    let Some(first) = parts.first().filter(|_| members.len() <= MAX_RAILS) else {
        return Err(DeviceError::Count);
    };
    let names: Vec<_> = parts.iter().map(|part| part.name.to_string_lossy()).collect();
    let merged = Device {
        name: CString::new(names.join("+")).unwrap_or_default(),
        pci_path: first.pci_path.clone(),
        guid: first.guid,
        speed: parts.iter().map(|part| part.speed).fold(0, c_int::saturating_add),
        port: first.port,
        members,
        rails: rails(&contexts)?,
        contexts,
        listen: first.listen,
    };
    let mut known = devices();
    known.push(Box::leak(Box::new(merged)));
    Ok(known.len() - 1)
}

/// The rails of these devices, which carry messages in proportion to their speeds.
fn rails(members: &[Member]) -> Result<Rails, RailsError> {
    let rail = |Member { name, context, speed }: &Member| {
        Ok(Rail::new(name, context)?.weight(u32::try_from(*speed).unwrap_or(1)))
    };
    let rails = members.iter().map(rail);
    Rails::new(rails.collect::<Result<_, _>>()?)
}

fn open(name: &str, number: usize) -> Result<Device, DeviceError> {
    let unknown = |reason: String| DeviceError::Unknown(name.to_owned(), reason);
    let is_soft = name.strip_prefix("soft").is_some_and(|rest| rest.parse::<u8>().is_ok());
    let context = if is_soft { soft() } else { adapter(name) }.map_err(unknown)?;
    let (device, port) = name.split_once(':').unwrap_or((name, "1"));
    let sysfs = PathBuf::from(std::env::var_os("SYSFS_PATH").unwrap_or_else(|| "/sys".into()))
        .join("class/infiniband")
        .join(device);
    let text = |file: String| fs::read_to_string(sysfs.join(file)).unwrap_or_default();
    let guid = u64::from_str_radix(&text("sys_image_guid".into()).trim().replace(':', ""), 16);
    let rate = text(format!("ports/{port}/rate"));
    let gigabits = rate.split_whitespace().next().and_then(|rate| rate.parse::<f64>().ok());
    let path = fs::canonicalize(sysfs.join("device")).ok();
    let speed = gigabits.map_or(10_000, |rate| (rate * 1000.0) as c_int);
    let contexts = vec![Member { name: name.to_owned(), context, speed }];
    let rails = rails(&contexts)?;
    Ok(Device {
        name: CString::new(name).map_err(|error| unknown(error.to_string()))?,
        pci_path: path
            .and_then(|path| CString::new(path.into_os_string().into_encoded_bytes()).ok()),
        guid: guid.unwrap_or(number as u64 + 1),
        speed,
        port: port.parse().unwrap_or(1),
        members: vec![number],
        rails,
        contexts,
        listen: if is_soft { Ipv4Addr::LOCALHOST.into() } else { listen_address() },
    })
}

/// The address of the interface that `NCCL_SOCKET_IFNAME` names, or of the first one that leads to
/// other hosts, or the loopback.
fn listen_address() -> HostAddress {
    let named = std::env::var("NCCL_SOCKET_IFNAME").unwrap_or_default();
    let named: Vec<&str> = named.split(',').map(|name| name.trim_start_matches('=')).collect();
    let known = interfaces::list().unwrap_or_default();
    let wanted =
        |name: &str| named.iter().any(|wanted| !wanted.is_empty() && name.starts_with(wanted));
    let by_name = known.iter().find(|interface| wanted(&interface.name));
    let usable = || known.iter().find(|one| one.reason.is_none() && !one.is_loopback());
    let address = by_name.or_else(usable).and_then(|interface| interface.addresses.first());
    address.copied().unwrap_or(Ipv4Addr::LOCALHOST.into())
}

impl Device {
    /// Where it listens: a free port.
    pub(crate) fn socket(&self) -> SocketAddr {
        self.listen.at(0)
    }

    pub(crate) fn path(&self) -> Option<&CStr> {
        self.pci_path.as_deref()
    }
}

#[cfg(feature = "soft")]
fn soft() -> Result<Context, String> {
    use barewire_channel::mlx5::{channel::soft::Soft, hca};

    let device = hca::Device::open(hca::Config::default()).map_err(|error| error.to_string())?;
    Context::open(Soft::new(device)).map_err(|error| error.to_string())
}

#[cfg(not(feature = "soft"))]
fn soft() -> Result<Context, String> {
    Err("this library was built without the feature soft".to_owned())
}

/// The adapters of the machine, by name and port.
#[cfg(feature = "verbs")]
fn of_machine() -> Vec<String> {
    let root = std::env::var_os("SYSFS_PATH").unwrap_or_else(|| "/sys".into());
    let entries = fs::read_dir(PathBuf::from(root).join("class/infiniband"));
    let mut names: Vec<String> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("mlx5"))
        .map(|name| format!("{name}:1"))
        .collect();
    names.sort();
    names
}

#[cfg(not(feature = "verbs"))]
fn of_machine() -> Vec<String> {
    Vec::new()
}

#[cfg(feature = "verbs")]
fn adapter(name: &str) -> Result<Context, String> {
    let (device, port) = name.split_once(':').unwrap_or((name, "1"));
    let port = port.parse().map_err(|_| format!("'{port}' is no port number"))?;
    let opened = barewire_channel::mlx5::setup::open(device, port, None);
    opened.map(|opened| opened.context).map_err(|error| error.to_string())
}

#[cfg(not(feature = "verbs"))]
fn adapter(_: &str) -> Result<Context, String> {
    Err("this library was built without the feature verbs".to_owned())
}
