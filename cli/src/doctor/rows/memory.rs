//! Registering memory.

use std::ptr::{self, NonNull};
use std::time::Instant;

use barewire::{Access, Domain};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::super::outcome::{Checked, Halt, ensure};
use super::super::target::Target;

const LENGTHS: [usize; 8] = [1, 4096, 12_288, 65_536, 0x10_4000, 1 << 20, (1 << 20) + 4096, MOST];
/// The longest.
const MOST: usize = 16 << 20;
/// Offsets of the start in the mapping: an IOMMU may give the memory larger pages than the CPU has.
const OFFSETS: [usize; 4] = [0, 4096, 8192, 64];

/// Registers memory of many lengths and offsets, allocated by the library and mapped here.
pub(in super::super) fn memory(target: &Target) -> Checked {
    let transport = target.transport()?;
    let domain = Domain::open(&barewire::DeviceId::new(transport, &target.device))?;
    for length in LENGTHS {
        let memory = domain.allocate(length, Access::all())?;
        let length_found = memory.len();
        ensure(length_found == length, || format!("{length_found} bytes instead of {length}"))?;
        domain.unpack_key(&memory.pack_key())?;
        memory.deregister()?;
    }
    let mapping = map(MOST + 8192)?;
    let mut slowest = 0.0_f64;
    for length in LENGTHS {
        for offset in OFFSETS {
            let started = Instant::now();
            // SAFETY: `length` bytes at `offset` lie inside the mapping, which lives as long as the
            // process, and only the registered memory of this loop uses it.
            let memory = unsafe { domain.register(mapping.add(offset), length, Access::all()) };
            let memory = memory.map_err(|error| at(length, offset, &error))?;
            slowest = slowest.max(started.elapsed().as_secs_f64());
            let bytes = super::pattern(offset, length.min(64));
            memory.write(length - bytes.len(), &bytes)?;
            memory.deregister().map_err(|error| at(length, offset, &error))?;
        }
    }
    Ok(format!(
        "{} lengths from 1 B to 16 MiB at {} offsets, the slowest in {:.2} ms",
        LENGTHS.len(),
        OFFSETS.len(),
        slowest * 1e3
    ))
}

fn at(length: usize, offset: usize, error: &dyn std::error::Error) -> Halt {
    Halt::failed(format!("{length} bytes at offset {offset}: {}", crate::error::chain(error)))
}

/// Maps memory that stays mapped until this process ends, as dropped registrations require.
fn map(length: usize) -> Checked<NonNull<u8>> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, so no other mapping is replaced.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), length, rights, MapFlags::PRIVATE)? };
    NonNull::new(start.cast()).ok_or_else(|| Halt::failed("mmap returned null"))
}
