//! Devices as libibverbs lists and opens them, and their ports.

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use barewire_mlx5dv_sys::Library;

use crate::dv::Devx;
use crate::probe::Roots;
use crate::sys::{self, DeviceList, ListedDevice, OpenContext};

/// A device that libibverbs has a driver for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name, `mlx5_0`.
    pub name: String,
    /// The node GUID, in host order.
    pub guid: u64,
    /// libmlx5 drives it.
    pub is_mlx5: bool,
}

/// The devices that can be opened by name. Empty where the machine has none, and where the kernel has no
/// ib_uverbs at all; [`crate::probe`] tells which.
///
/// # Errors
/// What the library says if it cannot look, such as no memory or no permission to read sysfs.
pub fn devices() -> io::Result<Vec<Device>> {
    // Without libmlx5 no device is one of its.
    let library = Library::get().ok();
    let device = |device: ListedDevice<'_>| Device {
        name: device.name(),
        guid: device.guid(),
        is_mlx5: library.is_some_and(|library| device.is_mlx5(library)),
    };
    listed(DeviceList::get().map(|list| list.iter().map(device).collect()))
}

/// A kernel without RDMA (ENOSYS) has no devices; that is no error.
fn listed(answer: io::Result<Vec<Device>>) -> io::Result<Vec<Device>> {
    match answer {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Vec::new()),
        answer => answer,
    }
}

/// An open device. Clones are the same one; it is closed when the last of them, and of what was made from them, is dropped.
#[derive(Clone)]
pub struct Context(Arc<OpenContext>);

impl From<Arc<OpenContext>> for Context {
    fn from(open: Arc<OpenContext>) -> Self {
        Self(open)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name())
            .field("ports", &self.port_count())
            .field("devx", &self.0.devx().is_some())
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Opens the device of this name.
    ///
    /// ```no_run
    /// for device in barewire_verbs::devices()? {
    ///     let context = barewire_verbs::Context::open(&device.name)?;
    ///     println!("{}: {:?}", device.name, context.query_port(1)?);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError::NotFound`] names the devices that there are; the other variants carry what the library
    /// said.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        Self::open_with(name, |device| {
            device.open().map_err(|source| OpenError::Refused {
                name: name.to_owned(),
                obstacle: Roots::default().obstacle(name),
                source,
            })
        })
    }

    /// Opens the device of this name with the right to send it commands: [`Self::devx`]. Otherwise it is as [`Self::open`] leaves it.
    ///
    /// # Errors
    /// As there; and [`OpenError::NoLibrary`], [`OpenError::NotMlx5`] or [`OpenError::DevxRefused`]. The device may then still be opened
    /// without.
    pub fn open_devx(name: &str) -> Result<Self, OpenError> {
        let library = Library::get()
            .map_err(|error| OpenError::NoLibrary { name: name.to_owned(), reason: error.to_string() })?;
        Self::open_with(name, |device| {
            if !device.is_mlx5(library) {
                return Err(OpenError::NotMlx5 { name: name.to_owned() });
            }
            device.open_devx(library).map_err(|source| match Roots::default().obstacle(name) {
                None => OpenError::DevxRefused { name: name.to_owned(), source },
                obstacle => OpenError::Refused { name: name.to_owned(), obstacle, source },
            })
        })
    }

    fn open_with(
        name: &str,
        open: impl FnOnce(&ListedDevice<'_>) -> Result<OpenContext, OpenError>,
    ) -> Result<Self, OpenError> {
        let list = match DeviceList::get() {
            Ok(list) => list,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Err(OpenError::NotFound { name: name.to_owned(), present: Vec::new() });
            }
            Err(error) => return Err(OpenError::List(error)),
        };
        let Some(device) = list.iter().find(|device| device.name() == name) else {
            let present = list.iter().map(|device| device.name()).collect();
            return Err(OpenError::NotFound { name: name.to_owned(), present });
        };
        Ok(Self(Arc::new(open(&device)?)))
    }

    /// The way to send commands, if the device was opened for it.
    pub fn devx(&self) -> Option<Devx> {
        sys::Devx::of(&self.0).map(Devx::new)
    }

    /// Whether it is the kernel's own device, which sends RoCE from a network interface.
    pub fn is_soft_roce(&self) -> bool {
        self.open_context().is_soft_roce()
    }

    pub(crate) fn open_context(&self) -> &Arc<OpenContext> {
        &self.0
    }

    /// The name it was opened by.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// How many ports the device has; they are numbered from 1.
    pub fn port_count(&self) -> u8 {
        self.0.ports()
    }

    /// Asks for the attributes of a port. verbs.h: `ibv_query_port`.
    ///
    /// # Errors
    /// [`QueryError::NoSuchPort`] for a number that the device does not have, [`QueryError::Failed`] with
    /// what the library said.
    pub fn query_port(&self, number: u8) -> Result<Port, QueryError> {
        if number == 0 || number > self.port_count() {
            return Err(QueryError::NoSuchPort {
                device: self.name().to_owned(),
                port: number,
                count: self.port_count(),
            });
        }
        let attributes = self.0.query_port(number).map_err(|source| QueryError::Failed {
            device: self.name().to_owned(),
            port: number,
            source,
        })?;
        Ok(Port {
            number,
            state: PortState::from_verbs(attributes.state),
            link_layer: LinkLayer::from_verbs(attributes.link_layer),
            max_mtu: mtu(attributes.max_mtu),
            active_mtu: mtu(attributes.active_mtu),
            gids: u32::try_from(attributes.gid_tbl_len).unwrap_or(0),
            lid: attributes.lid,
            max_message: attributes.max_msg_sz,
        })
    }
}

/// What a port is and can do. verbs.h: `struct ibv_port_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it carries traffic.
    pub state: PortState,
    /// What it is linked to.
    pub link_layer: LinkLayer,
    /// The largest path MTU in bytes; 0 if the device gave no known value.
    pub max_mtu: u32,
    /// The path MTU in use, in bytes; 0 if the device gave no known value.
    pub active_mtu: u32,
    /// Entries of the GID table, used or not.
    pub gids: u32,
    /// The local identifier of an InfiniBand port; 0 on Ethernet.
    pub lid: u16,
    /// The longest message in bytes.
    pub max_message: u32,
}

/// The logical state of a port. verbs.h: `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No state change was ever reported.
    Nop,
    /// No link.
    Down,
    /// A link that the subnet manager has not configured.
    Initialize,
    /// Configured and not yet in use.
    Armed,
    /// In use.
    Active,
    /// Was active and is in a short outage of the link.
    ActiveDefer,
    /// A value that verbs.h does not name.
    Unknown(u32),
}

impl PortState {
    fn from_verbs(value: u32) -> Self {
        match value {
            0 => Self::Nop,
            1 => Self::Down,
            2 => Self::Initialize,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            other => Self::Unknown(other),
        }
    }
}

/// What a port is linked to. verbs.h: `IBV_LINK_LAYER_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// The driver did not say, which means InfiniBand.
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// A value that verbs.h does not name.
    Unknown(u8),
}

impl LinkLayer {
    fn from_verbs(value: u8) -> Self {
        match value {
            0 => Self::Unspecified,
            1 => Self::InfiniBand,
            2 => Self::Ethernet,
            other => Self::Unknown(other),
        }
    }
}

/// `enum ibv_mtu` in bytes: 1 is 256, 5 is 4096.
fn mtu(value: u32) -> u32 {
    if (1..=5).contains(&value) { 128 << value } else { 0 }
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library could not list the devices.
    #[error("cannot list RDMA devices: {0}")]
    List(#[source] io::Error),
    /// No device has this name.
    #[error("no RDMA device {name}: {}", present_in_words(.present))]
    NotFound {
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        present: Vec<String>,
    },
    /// The device is there and would not open.
    #[error("cannot open RDMA device {name}: {}", .obstacle.clone().unwrap_or_else(|| .source.to_string()))]
    Refused {
        /// Its name.
        name: String,
        /// What stands in the way, if its files tell; the library forgets what the system said.
        obstacle: Option<String>,
        /// What the library said.
        source: io::Error,
    },
    /// libmlx5 is not installed, or too old.
    #[error(
        "no direct access to {name}: {reason}; libmlx5 of rdma-core 44 or later is needed (Debian: ibverbs-providers)"
    )]
    NoLibrary {
        /// The device's name.
        name: String,
        /// What the loader said.
        reason: String,
    },
    /// The device has another driver than libmlx5.
    #[error("no direct access to {name}: it is not an mlx5 device")]
    NotMlx5 {
        /// Its name.
        name: String,
    },
    /// The device would not open for DEVX.
    #[error("cannot open RDMA device {name} for DEVX: {source}; {}", devx_hint(.source))]
    DevxRefused {
        /// Its name.
        name: String,
        /// What the library said.
        source: io::Error,
    },
}

/// What stands behind a refusal of DEVX (linux mlx5_ib `mlx5_ib_alloc_ucontext`).
fn devx_hint(error: &io::Error) -> &'static str {
    const ENODEV: i32 = 19;
    const EINVAL: i32 = 22;
    match error.raw_os_error() {
        Some(EINVAL) => {
            "the firmware gives user contexts to no program: it is too old, or UCTX_EN is off (mlxconfig -d DEVICE set UCTX_EN=1)"
        }
        Some(ENODEV) => "the device is gone",
        _ if error.kind() == ErrorKind::PermissionDenied => {
            "the kernel or the container forbids it: check the rights to /dev/infiniband/uverbs*; objects of verbs may still be opened"
        }
        _ => {
            "the kernel has no DEVX (before 4.19, or without CONFIG_INFINIBAND_USER_ACCESS); objects of verbs may still be opened"
        }
    }
}

fn present_in_words(present: &[String]) -> String {
    if present.is_empty() {
        "this machine has none".to_owned()
    } else {
        format!("there is {}", present.join(", "))
    }
}

/// Why a port could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The device does not have a port of this number.
    #[error("{device} has no port {port}: its ports are 1 to {count}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The number that was asked for.
        port: u8,
        /// How many ports there are.
        count: u8,
    },
    /// The query failed.
    #[error("cannot query port {port} of {device}: {source}")]
    Failed {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What the library said.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs with and without a device: here there is none, and the library answers ENOSYS or nothing.
    #[test]
    fn listing_works_on_any_machine() {
        for device in devices().unwrap() {
            assert!(!device.name.is_empty());
            // A device may be there and not be ours to open.
            let Ok(context) = Context::open(&device.name) else { continue };
            assert_eq!(context.name(), device.name);
            for number in 1..=context.port_count() {
                assert_eq!(context.query_port(number).unwrap().number, number);
            }
            assert!(matches!(context.query_port(0), Err(QueryError::NoSuchPort { .. })));
        }
    }

    #[test]
    fn a_kernel_without_rdma_has_no_devices() {
        const ENOSYS: i32 = 38;
        const EACCES: i32 = 13;
        assert_eq!(listed(Err(io::Error::from_raw_os_error(ENOSYS))).unwrap(), []);
        assert_eq!(
            listed(Err(io::Error::from_raw_os_error(EACCES))).unwrap_err().raw_os_error(),
            Some(EACCES)
        );
    }

    #[test]
    fn an_unknown_device_is_named_with_those_there_are() {
        let error = Context::open("no-such-device").unwrap_err();
        assert!(matches!(error, OpenError::NotFound { .. }), "{error:?}");
        assert!(error.to_string().starts_with("no RDMA device no-such-device: "), "{error}");
        assert_eq!(present_in_words(&["mlx5_0".to_owned(), "rxe0".to_owned()]), "there is mlx5_0, rxe0");
        assert_eq!(present_in_words(&[]), "this machine has none");
    }

    #[test]
    fn values_of_verbs_h() {
        assert_eq!([0, 1, 3, 5, 6].map(mtu), [0, 256, 1024, 4096, 0]);
        assert_eq!(PortState::from_verbs(4), PortState::Active);
        assert_eq!(PortState::from_verbs(9), PortState::Unknown(9));
        assert_eq!(LinkLayer::from_verbs(2), LinkLayer::Ethernet);
        assert_eq!(LinkLayer::from_verbs(7), LinkLayer::Unknown(7));
    }
}
