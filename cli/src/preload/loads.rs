//! Programs that load no library that LD_PRELOAD names.

use std::env;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Returns why the dynamic loader does not load preloaded libraries into a program; `None` if it
/// does, as far as is known.
pub(super) fn nothing(program: &OsStr) -> Option<&'static str> {
    let mut file = File::open(find(program)?).ok()?;
    if changes_user(&file.metadata().ok()?) {
        return Some("runs as another user (setuid)");
    }
    is_static(&mut file)?.then_some("is statically linked")
}

/// Returns the file that the kernel executes.
fn find(program: &OsStr) -> Option<PathBuf> {
    let given = Path::new(program);
    if given.components().count() > 1 || given.is_absolute() {
        return Some(given.to_owned());
    }
    let paths = env::var_os("PATH")?;
    let mut places = env::split_paths(&paths).map(|folder| folder.join(given));
    places.find(|place| {
        place.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    })
}

/// Returns whether the loader ignores LD_PRELOAD, since the program has another user or group than
/// its caller (ld.so(8), secure-execution mode).
fn changes_user(file: &Metadata) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    let mode = file.permissions().mode();
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    mode & SETUID != 0 && file.uid() != user || mode & SETGID != 0 && file.gid() != group
}

/// Returns whether an ELF file of 64 bits has no interpreter (elf(5)); `None` for other files.
fn is_static(file: &mut File) -> Option<bool> {
    /// `PT_INTERP`.
    const INTERPRETER: u32 = 3;
    /// Magic number, class of 64 bits, little-endian.
    const START: [u8; 6] = *b"\x7fELF\x02\x01";
    let mut header = [0; 64];
    file.read_exact(&mut header).ok()?;
    header.starts_with(&START).then_some(())?;
    let number = |at| u16::from_le_bytes([header[at], header[at + 1]]);
    let table = u64::from_le_bytes(*header[32..].first_chunk()?);
    let (size, count) = (number(54), number(56));
    for index in 0..u64::from(count) {
        let mut kind = [0; 4];
        let place = table.checked_add(index * u64::from(size))?;
        file.read_exact_at(&mut kind, place).ok()?;
        if u32::from_le_bytes(kind) == INTERPRETER {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn dynamic_programs_and_scripts_load_libraries() {
        assert_eq!(nothing(env::current_exe().unwrap().as_os_str()), None);
        for program in ["sh", "/etc/passwd", "no-such-program", "/", ""] {
            assert_eq!(nothing(OsStr::new(program)), None, "{program}");
        }
    }

    #[test]
    fn a_program_without_an_interpreter_is_static() {
        let path = env::temp_dir().join(format!("barewire-static-{}", std::process::id()));
        let mut bytes = fs::read(env::current_exe().unwrap()).unwrap();
        // No program headers are left.
        bytes[56..58].fill(0);
        bytes.truncate(64);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(nothing(path.as_os_str()), Some("is statically linked"));
        fs::remove_file(&path).unwrap();
    }
}
