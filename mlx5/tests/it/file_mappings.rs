//! Which mappings of files a device may write to: those whose pages a kernel pins.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{self, NonNull};

use barewire_mlx5::memory::OwnedBytes;
use barewire_mlx5::{Access, Buffer, MemoryConfig, ProtectionDomain, setup};

use crate::machine;

const BYTES: usize = 8192;

/// A mapping of a file without a name.
struct Mapping(NonNull<u8>);

impl Mapping {
    fn new(file: &File, flags: i32) -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let descriptor = file.as_raw_fd();
        // SAFETY: new pages, at an address that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), BYTES, rights, flags, descriptor, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self(NonNull::new(start.cast()).unwrap())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing uses after the value.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

// SAFETY: the address of a mapping, which any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing is done with a shared reference.
unsafe impl Sync for Mapping {}

// SAFETY: the pages stay mapped at their address until the value is dropped, are initialised by the
// kernel, and nothing else accesses them.
unsafe impl OwnedBytes for Mapping {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        (self.0, BYTES)
    }
}

fn file_in(directory: &Path, name: &str) -> File {
    let path = directory.join(format!("barewire-{}-{name}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&[7; BYTES]).unwrap();
    file
}

/// Whether the kernel keeps the file in memory only, by statfs(2).
fn is_in_memory(file: &File) -> bool {
    // SAFETY: a structure of numbers, which the kernel fills.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and the structure is valid for writes.
    assert_eq!(unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) }, 0);
    [libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&found.f_type)
}

fn domain() -> ProtectionDomain {
    let context = machine::context();
    let context = context.unwrap_or_else(|| setup::open("soft0", 1, None).unwrap().context);
    ProtectionDomain::allocate(&context).unwrap()
}

#[test]
fn a_shared_mapping_of_a_file_on_disk_is_not_registered_for_writes() {
    let domain = domain();
    // Beside the program, which is not in /tmp: that may be a tmpfs.
    let disk = file_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "disk");
    let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let register =
        |flags, config: MemoryConfig| Buffer::register(&domain, Mapping::new(&disk, flags), config);
    let shared = register(libc::MAP_SHARED, writes.into());
    if is_in_memory(&disk) {
        drop(shared.unwrap());
    } else {
        let text = shared.unwrap_err().to_string();
        assert!(text.contains("registering memory failed"), "{text}");
        assert!(text.contains("shared mapping of the file") || text.contains("os error 14"));
    }
    // Its own copy of the pages, or no right to write.
    register(libc::MAP_PRIVATE, writes.into()).unwrap();
    let read_only = register(libc::MAP_SHARED, Access::REMOTE_READ.into()).unwrap();
    assert_eq!(read_only.load_u8(BYTES - 1).unwrap(), 7);
    if domain.context().capabilities().on_demand {
        register(libc::MAP_SHARED, MemoryConfig::new(writes).on_demand()).unwrap();
    }
}

/// Set for the tests below that run in a mount namespace of their own: a folder in an overlay.
const FOLDER: &str = "BAREWIRE_TEST_FOLDER";

/// Mounts an overlay whose upper layer is in `upper`, and runs a test of this file there. Returns
/// false if this user may not mount it.
fn in_an_overlay_on(upper: &str, test: &str) -> bool {
    let mount = "set -e; mount -t tmpfs none /mnt; mkdir /mnt/l /mnt/m; cd \"$1\"; mkdir -p u w; \
                 mount -t overlay none /mnt/m \
                 -o lowerdir=/mnt/l,upperdir=\"$PWD/u\",workdir=\"$PWD/w\"";
    let unshared = |script: String| {
        let mut command = std::process::Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script]).arg(std::env::current_exe().unwrap());
        command.args([upper, test]).env(FOLDER, "/mnt/m").output()
    };
    if !unshared(mount.to_owned()).is_ok_and(|mounted| mounted.status.success()) {
        println!("skipped: no overlay can be mounted on {upper}");
        return false;
    }
    let run = "exec \"$0\" --exact \"file_mappings::$2\" --ignored";
    let output = unshared(format!("{mount}; {run}")).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    true
}

fn register_in_the_overlay() -> Result<(), barewire_mlx5::Error> {
    let file = file_in(Path::new(&std::env::var_os(FOLDER).unwrap()), "overlay");
    let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    Buffer::register(&domain(), Mapping::new(&file, libc::MAP_SHARED), writes).map(drop)
}

#[test]
fn the_upper_layer_of_an_overlay_decides() {
    in_an_overlay_on("/mnt", "an_overlay_in_memory");
    let disk = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("o{}", std::process::id()));
    std::fs::create_dir(&disk).unwrap();
    if !is_in_memory(&File::open(&disk).unwrap()) {
        in_an_overlay_on(disk.to_str().unwrap(), "an_overlay_on_disk");
    }
    std::fs::remove_dir_all(&disk).unwrap();
}

#[test]
#[ignore = "runs in the overlay of the_upper_layer_of_an_overlay_decides"]
fn an_overlay_in_memory() {
    register_in_the_overlay().unwrap();
}

#[test]
#[ignore = "runs in the overlay of the_upper_layer_of_an_overlay_decides"]
fn an_overlay_on_disk() {
    let text = register_in_the_overlay().unwrap_err().to_string();
    assert!(text.contains("registering memory failed"), "{text}");
}

#[test]
fn a_shared_mapping_of_a_file_in_memory_is_registered_for_writes() {
    let domain = domain();
    // SAFETY: the name ends with a zero byte.
    let descriptor = unsafe { libc::memfd_create(c"barewire".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(descriptor >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor, which nothing else closes.
    let mut unnamed = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(descriptor) };
    unnamed.write_all(&[7; BYTES]).unwrap();
    for file in [unnamed, file_in(Path::new("/dev/shm"), "memory")] {
        let mapping = Mapping::new(&file, libc::MAP_SHARED);
        let buffer = Buffer::register(&domain, mapping, Access::all()).unwrap();
        assert_eq!(buffer.load_u8(0).unwrap(), 7);
    }
}
