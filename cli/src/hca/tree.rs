//! The part of `/sys` that libibverbs, libmlx5 and UCX read, and the list of device files, as a
//! separate directory.

use crate::args::Link;
use barewire_hca::COUNTER_FILES;
use barewire_tcp::interfaces::NetworkInterface;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

const PREFIX: &str = "barewire-hca.";
/// The bus of the devices, and its bridge.
const BRIDGE: &str = "pci0000:c0";
const SLOT: &str = "0000:c1:00";
/// `/dev/null` represents every device file: it is a character device that always exists.
const DEVICE: &str = "/dev/null";
const STAND_IN: &str = "1:3";

const NO_GUID: &str = "0000:0000:0000:0000";
const NO_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

/// What valgrind is not to report. Memory of the library lives as long as its devices, to the end
/// of the process, and some of it is referred to by addresses within it: of the tables of
/// `HashMap`, of `Arc`s, and by the C library of its threads' memory. valgrind cannot know whether
/// such memory is lost ("possibly lost"). The same holds for the devices that libibverbs and
/// librdmacm keep. Memory without any reference is reported.
///
/// In builds without optimisation, a `Result` of a descriptor or an error number is compared as one
/// word, of which 16 bits are padding: `word > 0xfffffffe_ffff_ffff` asks whether the descriptor is
/// -1, whatever these bits are, which valgrind does not see. No memory of the program gets to these
/// functions, so that nothing else is hidden.
const SUPPRESSIONS: &str = "\
{
   rustix_result_of_a_descriptor
   Memcheck:Cond
   fun:*rustix*
}
{
   barewire_shm_result_of_a_descriptor
   Memcheck:Cond
   fun:*barewire_shm*
}
{
   barewire_hca_possibly_lost
   Memcheck:Leak
   match-leak-kinds: possible
   ...
   obj:*/libbarewire_hca.so
}
{
   barewire_hca_installed_possibly_lost
   Memcheck:Leak
   match-leak-kinds: possible
   ...
   obj:*/barewire-hca-preload
}
{
   libibverbs_list_of_devices
   Memcheck:Leak
   match-leak-kinds: possible
   ...
   fun:ibv_get_device_list
}
{
   librdmacm_devices
   Memcheck:Leak
   match-leak-kinds: possible
   ...
   obj:*/librdmacm.so.*
}";

/// A directory that replaces `/sys`. Removed on drop.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    /// The locked directory. The kernel releases the lock when the process ends, so an unlocked
    /// directory has no owner, whatever the namespace of process ids is.
    _lock: OwnedFd,
}

impl Tree {
    /// Creates the tree for the given devices and ports in the directory for temporary files.
    /// Removes trees of runs that were killed.
    pub(super) fn new(
        devices: usize,
        ports: u8,
        link: Link,
        partition_keys: &[u16],
        addresses: &[IpAddr],
    ) -> io::Result<Self> {
        let folder = std::env::temp_dir();
        sweep(&folder);
        let (root, lock) = claim(&folder)?;
        let tree = Self { root, _lock: lock };
        tree.write("class/infiniband_verbs/abi_version", "6")?;
        for class in ["misc/rdma_cm", "infiniband_cma"] {
            tree.write(&format!("class/{class}/abi_version"), "4")?;
        }
        for folder in ["class/infiniband", "dev/infiniband"] {
            fs::create_dir_all(tree.root.join(folder))?;
        }
        // What lists the directory sees these names; the preloaded library opens the devices.
        symlink(DEVICE, tree.root.join("dev/infiniband/rdma_cm"))?;
        fs::create_dir_all(tree.root.join("bus/pci/devices"))?;
        let interfaces = barewire_tcp::interfaces::list().unwrap_or_default();
        for number in 0..devices {
            let interface = interface(&interfaces, addresses.get(number));
            tree.device(number, ports, link, (partition_keys, interface))?;
        }
        Ok(tree)
    }

    /// Writes the suppressions for valgrind, and returns their path.
    pub(super) fn suppressions(&self) -> io::Result<PathBuf> {
        self.write("valgrind.supp", SUPPRESSIONS)?;
        Ok(self.root.join("valgrind.supp"))
    }

    /// Path of the directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.root.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, format!("{text}\n"))
    }

    fn device(
        &self,
        number: usize,
        ports: u8,
        link: Link,
        (partition_keys, interface): (&[u16], &str),
    ) -> io::Result<()> {
        let (name, verbs) = (format!("mlx5_{number}"), format!("uverbs{number}"));
        let slot = format!("{SLOT}.{number:x}");
        let function = format!("devices/{BRIDGE}/{slot}");
        let device = format!("{function}/infiniband/{name}");
        // GUIDs, LIDs, GIDs and counters are specific to a process: the preloaded library replaces
        // these files when they are opened, and here they are zero.
        let function_files = [
            ("vendor", "0x15b3"),
            ("device", "0x1021"),
            ("subsystem_vendor", "0x15b3"),
            ("subsystem_device", "0x0023"),
            ("class", "0x020700"),
            ("modalias", "pci:v000015B3d00001021sv000015B3sd00000023bc02sc07i00"),
            ("numa_node", "-1"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
        ];
        for (file, text) in function_files {
            self.write(&format!("{function}/{file}"), text)?;
        }
        let device_files = [
            ("node_type", "1: CA"),
            ("hca_type", "MT4129"),
            ("fw_ver", "28.43.1000"),
            ("hw_rev", "0"),
            ("board_id", "BAREWIRE_SOFT"),
            ("node_desc", "barewire"),
            ("node_guid", NO_GUID),
            ("sys_image_guid", NO_GUID),
        ];
        for (file, text) in device_files {
            self.write(&format!("{device}/{file}"), text)?;
        }
        for port in 1..=ports {
            let folder = format!("{device}/ports/{port}");
            self.port(&folder, link, interface)?;
            for (index, key) in partition_keys.iter().enumerate() {
                self.write(&format!("{folder}/pkeys/{index}"), &format!("{key:#06x}"))?;
            }
        }
        let verbs_folder = format!("class/infiniband_verbs/{verbs}");
        self.write(&format!("{verbs_folder}/ibdev"), &name)?;
        self.write(&format!("{verbs_folder}/dev"), STAND_IN)?;
        self.write(&format!("{verbs_folder}/abi_version"), "1")?;
        let link = |from: String, to: String| symlink(to, self.root.join(from));
        link(format!("dev/infiniband/{verbs}"), DEVICE.to_owned())?;
        link(format!("{verbs_folder}/device"), format!("../../../{function}"))?;
        link(format!("class/infiniband/{name}"), format!("../../{device}"))?;
        link(format!("{device}/device"), "../..".to_owned())?;
        // By it, programs find IP addresses with which rdma_cm reaches the device.
        fs::create_dir_all(self.root.join(format!("{function}/net")))?;
        link(format!("{function}/net/{interface}"), format!("/sys/class/net/{interface}"))?;
        link(format!("bus/pci/devices/{slot}"), format!("../../../{function}"))
    }

    fn port(&self, port: &str, link: Link, interface: &str) -> io::Result<()> {
        // The capabilities: connection management, and for RoCE also GIDs that are addresses.
        let (layer, capabilities, manager) = match link {
            Link::Roce => ("Ethernet", "0x04010000", "0x0"),
            Link::Ib => ("InfiniBand", "0x00010000", "0x1"),
        };
        let port_files = [
            ("link_layer", layer),
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("cap_mask", capabilities),
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("sm_lid", manager),
            ("sm_sl", "0"),
            ("gids/0", NO_GID),
        ];
        let counters = COUNTER_FILES.iter().map(|&(file, _)| (file, "0"));
        for (file, text) in port_files.into_iter().chain(counters) {
            self.write(&format!("{port}/{file}"), text)?;
        }
        if link == Link::Roce {
            self.write(&format!("{port}/gid_attrs/types/0"), "RoCE v2")?;
            self.write(&format!("{port}/gid_attrs/ndevs/0"), interface)?;
        } else {
            self.write(&format!("{port}/gid_attrs/types/0"), "IB/RoCE v1")?;
        }
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // The next run removes what is left.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Returns the network interface that has the address of a device: the loopback unless another one
/// has it.
fn interface<'a>(interfaces: &'a [NetworkInterface], address: Option<&IpAddr>) -> &'a str {
    let has = |one: &&NetworkInterface| one.addresses.iter().any(|own| Some(&own.ip()) == address);
    interfaces.iter().find(has).map_or("lo", |interface| &interface.name)
}

/// Creates a directory with a random name and locks it.
fn claim(folder: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        let root =
            folder.join(format!("{PREFIX}{:016x}", RandomState::new().build_hasher().finish()));
        match fs::DirBuilder::new().mode(0o700).create(&root) {
            // The name may be taken by any other process.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        // Another run may remove it before it is locked.
        match lock(&root) {
            Ok(lock) if is_at(&lock, &root) => return Ok((root, lock)),
            Err(error)
                if error.kind() != ErrorKind::NotFound && error.kind() != ErrorKind::WouldBlock =>
            {
                return Err(error);
            }
            _ => {}
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "no name is free for a folder"))
}

/// Locks a directory for as long as the descriptor is open. Fails if another process holds the
/// lock.
fn lock(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let handle = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive)?;
    Ok(handle)
}

/// Returns whether the path still names the open directory.
fn is_at(handle: &OwnedFd, path: &Path) -> bool {
    let (open, named) = (rustix::fs::fstat(handle), rustix::fs::lstat(path));
    open.is_ok_and(|open| {
        named.is_ok_and(|named| (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino))
    })
}

/// Removes trees of this user that no process holds a lock on.
fn sweep(folder: &Path) {
    let me = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            continue;
        }
        let mine = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == me);
        if mine && let Ok(_locked) = lock(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_comes_and_goes() {
        let tree = Tree::new(2, 2, Link::Roce, &[0xffff, 0x8001], &[]).unwrap();
        let root = tree.root().to_owned();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(read("class/infiniband_verbs/uverbs1/ibdev"), "mlx5_1\n");
        assert_eq!(read("class/infiniband/mlx5_1/device/device"), "0x1021\n");
        assert_eq!(read("class/infiniband/mlx5_1/ports/2/gid_attrs/types/0"), "RoCE v2\n");
        assert_eq!(read("class/infiniband/mlx5_0/ports/1/pkeys/1"), "0x8001\n");
        assert_eq!(read("class/infiniband_verbs/uverbs0/device/vendor"), "0x15b3\n");
        assert_eq!(read("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0"), "lo\n");
        let net = fs::read_link(root.join("class/infiniband/mlx5_0/device/net/lo")).unwrap();
        assert_eq!(net, Path::new("/sys/class/net/lo"));
        let place = fs::canonicalize(root.join("class/infiniband/mlx5_0")).unwrap();
        assert!(place.ends_with("0000:c1:00.0/infiniband/mlx5_0"), "{}", place.display());
        drop(tree);
        assert!(!root.exists());
    }

    /// As seen from another process id namespace that shares /tmp: a process id in the name has no
    /// meaning.
    #[test]
    fn a_live_tree_stays_and_a_dead_one_goes() {
        let folder = std::env::temp_dir().join(format!("barewire-sweep-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (live, locked) = claim(&folder).unwrap();
        // Process ids end at 2^22.
        let renamed = folder.join(format!("{PREFIX}4194305"));
        fs::rename(&live, &renamed).unwrap();
        let (dead, unlocked) = claim(&folder).unwrap();
        drop(unlocked);
        sweep(&folder);
        assert!(renamed.exists() && !dead.exists());
        drop(locked);
        sweep(&folder);
        assert!(!renamed.exists());
        fs::remove_dir(&folder).unwrap();
    }
}
