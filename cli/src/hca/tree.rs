//! The part of `/sys` that libibverbs, libmlx5 and UCX look at, as a folder of its own.

use crate::args::Link;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

const PREFIX: &str = "barewire-hca.";
/// The bus on which the devices are, and where that hangs.
const BRIDGE: &str = "pci0000:c0";
const SLOT: &str = "0000:c1:00";
/// `/dev/null`, which stands for every device file: a character device that is always there.
const STAND_IN: &str = "1:3";

/// A folder that stands for `/sys`. It goes away when this is dropped.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Makes the tree of so many devices with so many ports in the folder for temporary files. Those of runs that were killed are removed.
    pub(super) fn new(devices: usize, ports: u8, link: Link) -> io::Result<Self> {
        let folder = std::env::temp_dir();
        sweep(&folder);
        let root = folder.join(format!("{PREFIX}{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&root)?;
        let tree = Self { root };
        tree.write("class/infiniband_verbs/abi_version", "6")?;
        fs::create_dir_all(tree.root.join("class/infiniband"))?;
        fs::create_dir_all(tree.root.join("bus/pci/devices"))?;
        for number in 0..devices {
            tree.device(number, ports, link)?;
        }
        Ok(tree)
    }

    /// Where it is.
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

    fn device(&self, number: usize, ports: u8, link: Link) -> io::Result<()> {
        let (name, verbs) = (format!("mlx5_{number}"), format!("uverbs{number}"));
        let slot = format!("{SLOT}.{number:x}");
        let function = format!("devices/{BRIDGE}/{slot}");
        let device = format!("{function}/infiniband/{name}");
        // What no query of libibverbs tells; GUIDs and GIDs are each process's own, and are asked of its device.
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
            ("board_id", "BAREWIRE_SOFT"),
        ];
        for (file, text) in device_files {
            self.write(&format!("{device}/{file}"), text)?;
        }
        for port in 1..=ports {
            self.port(&format!("{device}/ports/{port}"), link)?;
        }
        let verbs_folder = format!("class/infiniband_verbs/{verbs}");
        self.write(&format!("{verbs_folder}/ibdev"), &name)?;
        self.write(&format!("{verbs_folder}/dev"), STAND_IN)?;
        self.write(&format!("{verbs_folder}/abi_version"), "1")?;
        let link = |from: String, to: String| symlink(to, self.root.join(from));
        link(format!("{verbs_folder}/device"), format!("../../../{function}"))?;
        link(format!("class/infiniband/{name}"), format!("../../{device}"))?;
        link(format!("{device}/device"), "../..".to_owned())?;
        link(format!("bus/pci/devices/{slot}"), format!("../../../{function}"))
    }

    fn port(&self, port: &str, link: Link) -> io::Result<()> {
        let layer = match link {
            Link::Roce => "Ethernet",
            Link::Ib => "InfiniBand",
        };
        let port_files = [
            ("link_layer", layer),
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("pkeys/0", "0xffff"),
        ];
        for (file, text) in port_files {
            self.write(&format!("{port}/{file}"), text)?;
        }
        if link == Link::Roce {
            self.write(&format!("{port}/gid_attrs/types/0"), "RoCE v2")?;
            self.write(&format!("{port}/gid_attrs/ndevs/0"), "lo")?;
        } else {
            self.write(&format!("{port}/gid_attrs/types/0"), "IB/RoCE v1")?;
        }
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // What stays is removed by the next run.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Removes trees whose process is gone.
fn sweep(folder: &Path) {
    // SAFETY: takes nothing and cannot fail.
    let me = unsafe { libc::geteuid() };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let Ok(process) = process.parse::<u32>() else { continue };
        let mine = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == me);
        if mine && (process == std::process::id() || !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_comes_and_goes() {
        let tree = Tree::new(2, 2, Link::Roce).unwrap();
        let root = tree.root().to_owned();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(read("class/infiniband_verbs/uverbs1/ibdev"), "mlx5_1\n");
        assert_eq!(read("class/infiniband/mlx5_1/device/device"), "0x1021\n");
        assert_eq!(read("class/infiniband/mlx5_1/ports/2/gid_attrs/types/0"), "RoCE v2\n");
        assert_eq!(read("class/infiniband_verbs/uverbs0/device/vendor"), "0x15b3\n");
        let place = fs::canonicalize(root.join("class/infiniband/mlx5_0")).unwrap();
        assert!(place.ends_with("0000:c1:00.0/infiniband/mlx5_0"), "{}", place.display());
        drop(tree);
        assert!(!root.exists());
    }
}
