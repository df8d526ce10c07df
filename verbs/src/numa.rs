//! Where devices and threads are on a machine with several NUMA nodes.

use std::path::Path;

/// Returns a remark if the calling thread runs on another NUMA node than the device is attached to:
/// each access of the device to memory of the thread then crosses the link between the nodes.
pub fn far(name: &str) -> Option<String> {
    // libibverbs reads the same variable.
    let root = std::env::var_os("SYSFS_PATH").unwrap_or_else(|| "/sys".into());
    let device = node_of_device(Path::new(&root), name)?;
    let thread = node_of_cpu(Path::new("/sys"), rustix::thread::sched_getcpu())?;
    let remark = format!("the device is at NUMA node {device}, this thread at node {thread}");
    (device != thread).then_some(remark)
}

fn node_of_device(root: &Path, name: &str) -> Option<u32> {
    let file = root.join("class/infiniband").join(name).join("device/numa_node");
    // -1 if there is one node only.
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn node_of_cpu(root: &Path, cpu: usize) -> Option<u32> {
    let entries = std::fs::read_dir(root.join(format!("devices/system/cpu/cpu{cpu}"))).ok()?;
    let node = |name: &str| name.strip_prefix("node")?.parse().ok();
    entries.flatten().find_map(|entry| node(entry.file_name().to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_of_devices_and_cpus_are_read() {
        let root = std::env::temp_dir().join(format!("barewire-numa-{}", std::process::id()));
        for folder in ["class/infiniband/mlx5_9/device", "devices/system/cpu/cpu3/node1"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let file = root.join("class/infiniband/mlx5_9/device/numa_node");
        std::fs::write(&file, "2\n").unwrap();
        assert_eq!(node_of_device(&root, "mlx5_9"), Some(2));
        std::fs::write(&file, "-1\n").unwrap();
        assert_eq!(node_of_device(&root, "mlx5_9"), None);
        assert_eq!([3, 4].map(|cpu| node_of_cpu(&root, cpu)), [Some(1), None]);
        std::fs::remove_dir_all(root).unwrap();
    }
}
