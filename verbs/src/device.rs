//! Devices, as libibverbs lists and opens them, and their ports.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use barewire_mlx5dv_sys::Library;

use crate::dv::Devx;
use crate::probe::Roots;
use crate::sys::{self, DeviceList, ListedDevice, OpenContext};

/// A device that libibverbs has a driver for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name of the device, such as `mlx5_0`.
    pub name: String,
    /// The node GUID in host byte order.
    pub guid: u64,
    /// True if the device's driver is libmlx5.
    pub is_mlx5: bool,
}

/// The devices that can be opened by name. The list is empty on a machine without devices, and on a
/// kernel without ib_uverbs; [`crate::probe`] distinguishes the two.
///
/// # Errors
/// The error of libibverbs, such as out of memory, or no permission to read sysfs.
pub fn devices() -> io::Result<Vec<Device>> {
    // If libmlx5 is not installed, no device uses it.
    let library = Library::get().ok();
    let device = |device: ListedDevice<'_>| Device {
        name: device.name(),
        guid: device.guid(),
        is_mlx5: library.is_some_and(|library| device.is_mlx5(library)),
    };
    let devices = listed(DeviceList::get().map(|list| list.iter().map(device).collect()))?;
    if devices.is_empty() {
        // Without descriptors libibverbs finds no devices, and reports no error.
        let files: io::Result<Vec<File>> = (0..FILES).map(|_| File::open("/dev/null")).collect();
        files?;
    }
    Ok(devices)
}

/// Files that libibverbs has open at a time while it lists devices.
const FILES: usize = 4;

/// ENOSYS: a kernel without RDMA has no devices. That is not an error.
fn listed(result: io::Result<Vec<Device>>) -> io::Result<Vec<Device>> {
    match result {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Vec::new()),
        result => result,
    }
}

/// An open device. Cloning returns another handle to it. The device is closed when the last handle,
/// and the last object created from one, is dropped.
#[derive(Clone)]
#[must_use = "dropping the last handle closes the device"]
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
    /// Opens the device with this name.
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
    /// [`OpenError::NotFound`] lists the existing devices; the other variants carry the error of
    /// libibverbs.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        Self::open_with(name, |device| {
            device.open().map_err(|source| OpenError::Refused {
                name: name.to_owned(),
                obstacle: Roots::default().obstacle(name),
                source,
            })
        })
    }

    /// Opens the device with this name and with the right to send it commands: see [`Self::devx`].
    /// Otherwise equal to [`Self::open`].
    ///
    /// # Errors
    /// Those of [`Self::open`], and [`OpenError::NoLibrary`], [`OpenError::NotMlx5`] or
    /// [`OpenError::DevxRefused`]. In the last three cases [`Self::open`] may still succeed.
    pub fn open_devx(name: &str) -> Result<Self, OpenError> {
        let library = Library::get().map_err(|error| OpenError::NoLibrary {
            name: name.to_owned(),
            reason: error.to_string(),
        })?;
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

    /// The handle for sending commands, if the device was opened with [`Self::open_devx`].
    pub fn devx(&self) -> Option<Devx> {
        sys::Devx::of(&self.0).map(Devx::new)
    }

    /// Returns true for the kernel's Soft-RoCE device, which sends RoCE over a network interface.
    pub fn is_soft_roce(&self) -> bool {
        self.open_context().is_soft_roce()
    }

    pub(crate) fn open_context(&self) -> &Arc<OpenContext> {
        &self.0
    }

    /// The name with which the device was opened.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The number of ports. Ports are numbered from 1.
    pub fn port_count(&self) -> u8 {
        self.0.ports()
    }

    /// Queries the attributes of a port. verbs.h: `ibv_query_port`.
    ///
    /// # Errors
    /// [`QueryError::NoSuchPort`] if the device does not have the port, or [`QueryError::Failed`]
    /// with the error of libibverbs.
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
            partitions: attributes.pkey_tbl_len,
            lid: attributes.lid,
            max_message: attributes.max_msg_sz,
            global_route: attributes.flags & GRH_REQUIRED != 0,
        })
    }
}

/// In `ibv_port_attr.flags` (verbs.h: `IBV_QPF_GRH_REQUIRED`).
const GRH_REQUIRED: u8 = 1;

/// The attributes of a port. verbs.h: `struct ibv_port_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port number, from 1.
    pub number: u8,
    /// The state; [`PortState::Active`] ports carry traffic.
    pub state: PortState,
    /// The link layer.
    pub link_layer: LinkLayer,
    /// The maximum path MTU in bytes; 0 if the device reported an unknown value.
    pub max_mtu: u32,
    /// The active path MTU in bytes; 0 if the device reported an unknown value.
    pub active_mtu: u32,
    /// Size of the GID table in entries, whether used or not.
    pub gids: u32,
    /// Size of the partition table in entries, whether used or not.
    pub partitions: u16,
    /// The local identifier of an InfiniBand port; 0 on Ethernet.
    pub lid: u16,
    /// The maximum length of a message in bytes.
    pub max_message: u32,
    /// Whether every packet must have a global route, as on Ethernet and on virtual functions.
    pub global_route: bool,
}

/// The logical state of a port. verbs.h: `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The driver has not reported a state.
    Nop,
    /// There is no link.
    Down,
    /// There is a link, which the subnet manager has not configured.
    Initialize,
    /// The link is configured, but not active yet.
    Armed,
    /// The link carries traffic.
    Active,
    /// The link was active and is temporarily interrupted.
    ActiveDefer,
    /// A value that verbs.h does not define.
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

/// The link layer of a port. verbs.h: `IBV_LINK_LAYER_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// The driver did not report the link layer, which implies InfiniBand.
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// A value that verbs.h does not define.
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

/// Converts `enum ibv_mtu` to bytes: 1 is 256, 5 is 4096.
fn mtu(value: u32) -> u32 {
    if (1..=5).contains(&value) { 128 << value } else { 0 }
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// libibverbs could not list the devices.
    #[error("cannot list RDMA devices: {0}")]
    List(#[source] io::Error),
    /// No device has this name.
    #[error("no RDMA device {name}: {}", present_in_words(.present))]
    NotFound {
        /// The requested name.
        name: String,
        /// The names of the existing devices.
        present: Vec<String>,
    },
    /// The device exists but could not be opened.
    #[error("cannot open RDMA device {name}: {}", .obstacle.clone().unwrap_or_else(|| .source.to_string()))]
    Refused {
        /// Its name.
        name: String,
        /// The reason as far as the device's files show it; libibverbs does not report the kernel's
        /// error.
        obstacle: Option<String>,
        /// The error of libibverbs.
        source: io::Error,
    },
    /// libmlx5 is not installed, or too old.
    #[error(
        "no direct access to {name}: {reason}; libmlx5 of rdma-core 44 or later is needed (Debian: ibverbs-providers)"
    )]
    NoLibrary {
        /// The device's name.
        name: String,
        /// The error of the dynamic loader.
        reason: String,
    },
    /// The device's driver is not libmlx5.
    #[error("no direct access to {name}: it is not an mlx5 device")]
    NotMlx5 {
        /// Its name.
        name: String,
    },
    /// The device could not be opened for DEVX.
    #[error("cannot open RDMA device {name} for DEVX: {source}; {}", devx_hint(.source))]
    DevxRefused {
        /// Its name.
        name: String,
        /// The error of libmlx5.
        source: io::Error,
    },
}

/// The likely reason why DEVX was refused (linux mlx5_ib `mlx5_ib_alloc_ucontext`).
fn devx_hint(error: &io::Error) -> &'static str {
    const ENODEV: i32 = 19;
    const EINVAL: i32 = 22;
    match error.raw_os_error() {
        Some(EINVAL) => {
            "the firmware does not provide user contexts: it is too old, or UCTX_EN is off (mlxconfig -d DEVICE set UCTX_EN=1)"
        }
        Some(ENODEV) => "the device was removed",
        _ if error.kind() == ErrorKind::PermissionDenied => {
            "the kernel or the container denies it: check the permissions of /dev/infiniband/uverbs*; objects of verbs may still be opened"
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
        format!("existing devices: {}", present.join(", "))
    }
}

/// Why a port could not be queried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The device does not have a port with this number.
    #[error("{device} has no port {port}: its ports are 1 to {count}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The requested port.
        port: u8,
        /// The number of ports.
        count: u8,
    },
    /// The query failed.
    #[error("cannot query port {port} of {device}: {source}")]
    Failed {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The error of libibverbs.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes with and without a device: without one, libibverbs returns ENOSYS or an empty list.
    #[test]
    fn listing_works_on_any_machine() {
        for device in devices().unwrap() {
            assert!(!device.name.is_empty());
            // The test may lack permission to open the device.
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
    fn an_unknown_device_is_reported_with_the_existing_ones() {
        let error = Context::open("no-such-device").unwrap_err();
        assert!(matches!(error, OpenError::NotFound { .. }), "{error:?}");
        assert!(error.to_string().starts_with("no RDMA device no-such-device: "), "{error}");
        assert_eq!(
            present_in_words(&["mlx5_0".to_owned(), "rxe0".to_owned()]),
            "existing devices: mlx5_0, rxe0"
        );
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
