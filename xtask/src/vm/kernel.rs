//! The kernel of the guest, and its modules in the order of loading.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{self, Failure, Invocation};

/// Not on every user's path, although every user may run it.
pub(super) const MODPROBE: &str = "/sbin/modprobe";

/// The guest's modules: its root over 9p with an overlay, Soft-RoCE and its checksum, pairs of
/// network devices, loss.
const MODULES: &[&str] = &[
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "veth",
    "sch_netem",
];

const SOON: Duration = Duration::from_mins(1);

/// An installed kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    release: String,
}

/// Returns the newest installed kernel with Soft-RoCE.
pub(super) fn newest() -> Option<Kernel> {
    let folder = |entry: fs::DirEntry| {
        let release = entry.file_name().into_string().ok()?;
        let image = Path::new("/boot").join(format!("vmlinuz-{release}"));
        let has_rxe = entry.path().join("kernel/drivers/infiniband/sw/rxe").is_dir();
        (has_rxe && image.is_file()).then_some(Kernel { image, release })
    };
    let kernels = fs::read_dir("/lib/modules").into_iter().flatten().flatten().filter_map(folder);
    kernels.max_by(|a, b| by_numbers(&a.release, &b.release))
}

/// Compares releases by their numbers, so that 6.10 is after 6.9.
fn by_numbers(a: &str, b: &str) -> Ordering {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    numbers(a).cmp(&numbers(b))
}

impl Kernel {
    /// Returns the module files to load, each after its dependencies.
    pub(super) fn modules(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut files = Vec::new();
        for module in MODULES {
            let ask = Invocation::new(MODPROBE, &["-S", &self.release, "--show-depends", module]);
            let answer = process::text(&ask, SOON).map_err(|failure| {
                Failure::Found(format!("kernel {} has no module {module}: {failure}", self.release))
            })?;
            for file in files_in(&answer) {
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }
}

/// `insmod FILE [OPTIONS]`, or `builtin NAME` for a module without a file.
fn files_in(answer: &str) -> impl Iterator<Item = PathBuf> {
    let file =
        |line: &str| line.strip_prefix("insmod ")?.split_whitespace().next().map(PathBuf::from);
    answer.lines().filter_map(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_ordered_by_their_numbers() {
        assert_eq!(by_numbers("6.10.1-1-amd64", "6.9.12-3-amd64"), Ordering::Greater);
        assert_eq!(by_numbers("6.1.0-9-amd64", "6.1.0-56-amd64"), Ordering::Less);
    }

    #[test]
    fn module_files_are_read_from_the_answer() {
        let answer = "builtin crc32c\ninsmod /lib/modules/6/kernel/a.ko \ninsmod /lib/modules/6/kernel/b.ko x=1\n";
        let files: Vec<_> = files_in(answer).collect();
        assert_eq!(
            files,
            ["/lib/modules/6/kernel/a.ko", "/lib/modules/6/kernel/b.ko"].map(PathBuf::from)
        );
    }
}
