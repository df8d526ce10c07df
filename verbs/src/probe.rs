//! Lists RDMA devices and the obstacles to using them, from sysfs and `/dev` alone.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The device name in a finding about the machine as a whole.
pub const MACHINE: &str = "rdma";

/// A finding: whether this build can use a device. On a machine without devices it concerns the
/// machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the RDMA device (`mlx5_0`), or [`MACHINE`] if the finding is about the machine
    /// as a whole.
    pub device: String,
    /// True if this build of the crate can open the device and one of its ports is active.
    pub usable: bool,
    /// The reason, as text for a user. Several reasons are separated by `; `.
    pub reason: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.usable { "usable" } else { "not usable" };
        write!(f, "{}: {verdict}: {}", self.device, self.reason)
    }
}

/// Inspects the RDMA devices of this machine. Returns at least one finding; without devices it
/// states that there are none.
///
/// Opens and closes each `/dev/infiniband/uverbsN` to check the permission, and issues no command
/// on it.
///
/// ```
/// for finding in barewire_verbs::probe() {
///     println!("{finding}");
/// }
/// ```
pub fn probe() -> Vec<Finding> {
    Roots::default().probe()
}

/// The roots of the kernel's file systems. Other roots than the default are for tests and for
/// containers that mount those of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// sysfs, `/sys`.
    pub sys: PathBuf,
    /// Device files, `/dev`.
    pub dev: PathBuf,
    /// procfs, `/proc`: limits and capabilities of this process.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), dev: "/dev".into(), proc: "/proc".into() }
    }
}

impl Roots {
    /// Like [`probe`], with these roots.
    pub fn probe(&self) -> Vec<Finding> {
        self.findings(cfg!(feature = "rdma-sys"))
    }

    /// `opens` is true if this build can open devices.
    fn findings(&self, opens: bool) -> Vec<Finding> {
        let mut devices = match self.devices() {
            Ok(devices) if devices.is_empty() => return vec![machine(self.empty())],
            Ok(devices) => devices,
            Err(reason) => return vec![machine(reason)],
        };
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        devices.iter().map(|device| self.finding(device, opens)).collect()
    }

    /// The devices with a uverbs node, and kernel devices without one.
    fn devices(&self) -> Result<Vec<Candidate>, String> {
        let folder = self.sys.join("class/infiniband_verbs");
        let kernel = names(&self.sys.join("class/infiniband")).unwrap_or_default();
        let nodes = match names(&folder) {
            Ok(nodes) => nodes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if kernel.is_empty() {
                    let path = folder.display();
                    return Err(format!(
                        "no RDMA device: {path} does not exist (no ib_uverbs in this kernel)"
                    ));
                }
                Vec::new()
            }
            Err(error) => return Err(format!("cannot read {}: {error}", folder.display())),
        };
        let mut devices: Vec<Candidate> = nodes
            .into_iter()
            .filter(|node| node.starts_with("uverbs"))
            .map(|node| {
                // The kernel's name of the device; if it is missing, the name of the node.
                let name = text(&folder.join(&node).join("ibdev")).unwrap_or_else(|| node.clone());
                Candidate { name, node: Some(node) }
            })
            .collect();
        for name in kernel {
            if devices.iter().all(|device| device.name != name) {
                devices.push(Candidate { name, node: None });
            }
        }
        Ok(devices)
    }

    fn empty(&self) -> String {
        let folder = self.sys.join("class/infiniband_verbs");
        format!(
            "no RDMA device: {} lists none (no driver such as mlx5_ib or rdma_rxe has registered a device)",
            folder.display()
        )
    }

    fn finding(&self, device: &Candidate, opens: bool) -> Finding {
        let mut good = Vec::new();
        let mut bad = Vec::new();
        let mut sort = |result: Result<Option<String>, String>| match result {
            Ok(note) => good.extend(note),
            Err(reason) => bad.push(reason),
        };
        sort(self.access(device));
        sort(self.ports(&device.name).map(Some));
        sort(self.locked_memory());
        if !opens {
            sort(Err("this build cannot open devices: feature rdma-sys of barewire-verbs is off"
                .to_owned()));
        }
        let usable = bad.is_empty();
        Finding {
            device: device.name.clone(),
            usable,
            reason: if usable { good } else { bad }.join("; "),
        }
    }

    /// The reason why the device with this name cannot be opened, as far as files show it.
    #[cfg(feature = "rdma-sys")]
    pub(crate) fn obstacle(&self, name: &str) -> Option<String> {
        let devices = self.devices().ok()?;
        self.access(devices.iter().find(|device| device.name == name)?).err()
    }

    /// Checks that the device file can be opened. The error is the reason.
    fn access(&self, device: &Candidate) -> Result<Option<String>, String> {
        let Some(node) = &device.node else {
            return Err(
                "the device has no uverbs node: load the kernel module ib_uverbs".to_owned()
            );
        };
        let path = self.dev.join("infiniband").join(node);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(_) => Ok(None),
            Err(error) => Err(refusal(&path, &error)),
        }
    }

    /// The active ports and their link layers.
    fn ports(&self, device: &str) -> Result<String, String> {
        let folder = self.sys.join("class/infiniband").join(device).join("ports");
        let mut numbers =
            names(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
        numbers.sort_by_key(|number| number.parse::<u32>().unwrap_or(u32::MAX));
        let mut active = Vec::new();
        let mut other = Vec::new();
        for number in numbers {
            let port = folder.join(&number);
            // The format is `4: ACTIVE`, see drivers/infiniband/core/sysfs.c.
            let state =
                text(&port.join("state")).unwrap_or_else(|| "in an unknown state".to_owned());
            let state = state.split_once(": ").map_or(state.as_str(), |(_, word)| word);
            if state == "ACTIVE" {
                let link = text(&port.join("link_layer"))
                    .unwrap_or_else(|| "unknown link layer".to_owned());
                let rate =
                    text(&port.join("rate")).map(|rate| format!(", {rate}")).unwrap_or_default();
                active.push(format!("port {number} is active ({link}{rate})"));
            } else {
                other.push(format!("port {number} is {state}"));
            }
        }
        match (active.is_empty(), other.is_empty()) {
            (false, _) => Ok(active.join(", ")),
            (true, false) => Err(format!("no active port: {}", other.join(", "))),
            (true, true) => Err(format!("the device has no ports: {} is empty", folder.display())),
        }
    }

    /// The number of bytes that this process may lock; `None` if unlimited.
    pub(crate) fn lockable(&self) -> Option<u64> {
        let limits = fs::read_to_string(self.proc.join("self/limits")).unwrap_or_default();
        let status = fs::read_to_string(self.proc.join("self/status")).unwrap_or_default();
        memlock(&limits).filter(|_| !may_lock(&status))
    }

    /// Describes the effect of RLIMIT_MEMLOCK on memory registration, if it is limited.
    fn locked_memory(&self) -> Result<Option<String>, String> {
        match self.lockable() {
            Some(0) => {
                Err("this process may not lock memory, so it cannot register any: raise RLIMIT_MEMLOCK (ulimit -l)"
                    .to_owned())
            }
            Some(bytes) => Ok(Some(format!(
                "at most {} KiB of memory can be registered (RLIMIT_MEMLOCK, ulimit -l)",
                bytes / 1024
            ))),
            None => Ok(None),
        }
    }
}

/// A kernel device and its device node.
struct Candidate {
    name: String,
    node: Option<String>,
}

fn machine(reason: String) -> Finding {
    Finding { device: MACHINE.to_owned(), usable: false, reason }
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// A sysfs attribute without its newline; `None` if it cannot be read or is empty.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The reason why a device file could not be opened, and a remedy.
fn refusal(path: &Path, error: &io::Error) -> String {
    /// EPERM comes from the device cgroup; the permissions of the file would cause EACCES.
    const EPERM: i32 = 1;
    const ENXIO: i32 = 6;
    const ENODEV: i32 = 19;
    let path = path.display();
    match (error.raw_os_error(), error.kind()) {
        (Some(EPERM), _) => {
            format!("opening {path} is not permitted: give this container access to the device")
        }
        (Some(ENXIO | ENODEV), _) => format!("the device behind {path} was removed"),
        (_, ErrorKind::NotFound) => {
            format!("{path} does not exist: pass it to this container, or let udev create it")
        }
        (_, ErrorKind::PermissionDenied) => {
            format!(
                "no permission to open {path} for reading and writing: check its owner and mode"
            )
        }
        _ => format!("cannot open {path}: {error}"),
    }
}

/// The soft limit of locked memory in bytes, from `/proc/self/limits`; `None` if unlimited or
/// unknown.
fn memlock(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns true if `/proc/self/status` shows CAP_IPC_LOCK, which lifts the limit.
fn may_lock(status: &str) -> bool {
    /// include/uapi/linux/capability.h
    const CAP_IPC_LOCK: u32 = 14;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A temporary directory tree, removed when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let root = std::env::temp_dir()
                .join(format!("barewire-probe-{}-{number}", std::process::id()));
            fs::create_dir_all(&root).unwrap();
            Self(root)
        }

        fn roots(&self) -> Roots {
            Roots { sys: self.0.join("sys"), dev: self.0.join("dev"), proc: self.0.join("proc") }
        }

        fn file(&self, path: &str, text: &str) -> &Self {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn folder(&self, path: &str) -> &Self {
            fs::create_dir_all(self.0.join(path)).unwrap();
            self
        }

        /// Adds `mlx5_0` behind `uverbs0` with its device file and port 1 in the given state.
        fn mlx5(&self, state: &str) -> &Self {
            self.file("sys/class/infiniband_verbs/abi_version", "6\n")
                .file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
                .file("sys/class/infiniband/mlx5_0/ports/1/state", state)
                .file("sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n")
                .file("sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n")
                .file("dev/infiniband/uverbs0", "")
        }

        fn one(&self, opens: bool) -> Finding {
            let mut findings = self.roots().findings(opens);
            assert_eq!(findings.len(), 1, "{findings:?}");
            findings.remove(0)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_machine_without_rdma_says_so() {
        let tree = Tree::new();
        let finding = tree.one(true);
        assert!(!finding.usable);
        assert_eq!(finding.device, MACHINE);
        let folder = tree.roots().sys.join("class/infiniband_verbs");
        let wanted = format!(
            "no RDMA device: {} does not exist (no ib_uverbs in this kernel)",
            folder.display()
        );
        assert_eq!(finding.reason, wanted);
        assert_eq!(finding.to_string(), format!("rdma: not usable: {wanted}"));
    }

    #[test]
    fn this_machine_has_at_least_one_finding() {
        let findings = probe();
        assert!(!findings.is_empty());
        assert!(findings.iter().all(|finding| !finding.reason.is_empty()));
    }

    #[test]
    fn a_kernel_without_devices_says_so() {
        let tree = Tree::new();
        tree.file("sys/class/infiniband_verbs/abi_version", "6\n");
        let finding = tree.one(true);
        assert!(!finding.usable);
        assert!(finding.reason.contains("lists none"), "{finding}");
    }

    #[test]
    fn a_good_device_is_usable_and_says_its_link() {
        let tree = Tree::new();
        tree.mlx5("4: ACTIVE\n");
        let wanted = Finding {
            device: "mlx5_0".to_owned(),
            usable: true,
            reason: "port 1 is active (Ethernet, 100 Gb/sec (4X EDR))".to_owned(),
        };
        assert_eq!(tree.one(true), wanted);
        assert_eq!(tree.roots().probe()[0].usable, cfg!(feature = "rdma-sys"));
    }

    #[test]
    fn a_build_without_verbs_cannot_use_it() {
        let tree = Tree::new();
        let finding = tree.mlx5("4: ACTIVE\n").one(false);
        assert!(!finding.usable);
        assert!(finding.reason.contains("feature rdma-sys"), "{finding}");
    }

    #[test]
    fn a_port_that_is_down_is_named() {
        let tree = Tree::new();
        let finding = tree.mlx5("1: DOWN\n").one(true);
        assert_eq!(
            (finding.usable, finding.reason.as_str()),
            (false, "no active port: port 1 is DOWN")
        );
        tree.file("sys/class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE\n");
        let finding = tree.one(true);
        assert_eq!(
            (finding.usable, finding.reason.as_str()),
            (true, "port 2 is active (unknown link layer)")
        );
    }

    #[test]
    fn a_missing_device_file_is_named() {
        let tree = Tree::new();
        tree.mlx5("4: ACTIVE\n");
        let file = tree.roots().dev.join("infiniband/uverbs0");
        fs::remove_file(&file).unwrap();
        let finding = tree.one(true);
        assert!(!finding.usable);
        assert!(
            finding.reason.starts_with(&format!("{} does not exist", file.display())),
            "{finding}"
        );
    }

    #[test]
    fn a_device_without_uverbs_is_named() {
        let tree = Tree::new();
        tree.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        let finding = tree.one(true);
        assert_eq!(finding.device, "mlx5_0");
        assert!(finding.reason.contains("ib_uverbs"), "{finding}");
        // One device with a node and one without: each has its own finding.
        tree.file("sys/class/infiniband_verbs/uverbs3/ibdev", "rxe0\n");
        tree.file("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n")
            .file("dev/infiniband/uverbs3", "");
        let findings = tree.roots().findings(true);
        let verdicts: Vec<_> = findings.iter().map(|f| (f.device.as_str(), f.usable)).collect();
        assert_eq!(verdicts, [("mlx5_0", false), ("rxe0", true)]);
    }

    #[test]
    fn all_reasons_are_reported() {
        let tree = Tree::new();
        tree.file("sys/class/infiniband_verbs/uverbs0/dev", "231:192\n")
            .folder("sys/class/infiniband/uverbs0/ports");
        let finding = tree.one(false);
        assert_eq!(finding.device, "uverbs0", "no ibdev: the node's name has to do");
        assert_eq!(finding.reason.split("; ").count(), 3, "{finding}");
    }

    #[test]
    fn the_limit_of_locked_memory_is_reported() {
        let tree = Tree::new();
        let limits = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         {soft}              8388608              bytes\n"
            )
        };
        tree.mlx5("4: ACTIVE\n").file("proc/self/limits", &limits("65536"));
        let finding = tree.one(true);
        assert!(finding.usable && finding.reason.contains("at most 64 KiB"), "{finding}");
        tree.file("proc/self/limits", &limits("0"));
        assert!(!tree.one(true).usable);
        tree.file("proc/self/limits", &limits("unlimited"));
        assert!(!tree.one(true).reason.contains("RLIMIT"));
        tree.file("proc/self/limits", &limits("0"))
            .file("proc/self/status", "CapEff:\t0000000000004000\n");
        assert!(tree.one(true).usable, "CAP_IPC_LOCK lifts the limit");
    }

    #[test]
    fn refusals_have_remedies() {
        let words = |errno| {
            refusal(Path::new("/dev/infiniband/uverbs0"), &io::Error::from_raw_os_error(errno))
        };
        assert!(words(13).starts_with("no permission to open /dev/infiniband/uverbs0"));
        assert!(words(1).contains("container"));
        assert!(words(19).contains("was removed"));
        assert!(words(24).starts_with("cannot open /dev/infiniband/uverbs0: "));
    }
}
