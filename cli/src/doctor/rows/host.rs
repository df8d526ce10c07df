//! The host.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::super::outcome::Checked;
use super::super::target::Target;

/// Reports the facts of the host that a reader of the report needs.
pub(in super::super) fn host(_: &Target) -> Checked {
    let system = rustix::system::uname();
    let page = rustix::param::page_size();
    let processors = std::thread::available_parallelism()?;
    // The kernel has a group for each device whose DMA addresses an IOMMU translates.
    let iommu = fs::read_dir("/sys/kernel/iommu_groups").is_ok_and(|groups| groups.count() > 0);
    let locked = getrlimit(Resource::Memlock).current;
    Ok(format!(
        "{} {} {}, pages of {} KiB, {processors} CPUs, IOMMU {}, memlock {}",
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
        system.machine().to_string_lossy(),
        page >> 10,
        if iommu { "in use" } else { "not in use" },
        locked.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes >> 10)),
    ))
}
