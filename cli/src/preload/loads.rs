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
    let place = find(program)?;
    // Opening a FIFO would block.
    place.metadata().ok().filter(Metadata::is_file)?;
    let mut file = File::open(place).ok()?;
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

/// Returns whether an ELF file of 64 bits is a program without an interpreter (elf(5)); `None` for
/// other files, such as libraries and the interpreter itself.
fn is_static(file: &mut File) -> Option<bool> {
    /// `PT_DYNAMIC`, `PT_INTERP`.
    const DYNAMIC: u32 = 2;
    const INTERPRETER: u32 = 3;
    /// `ET_DYN`: a library, or a program that is loaded at any address.
    const SHARED: u16 = 3;
    /// Magic number, class of 64 bits, little-endian.
    const START: [u8; 6] = *b"\x7fELF\x02\x01";
    let mut header = [0; 64];
    file.read_exact(&mut header).ok()?;
    header.starts_with(&START).then_some(())?;
    let number = |at| u16::from_le_bytes([header[at], header[at + 1]]);
    let table = u64::from_le_bytes(*header[32..].first_chunk()?);
    let (kind, size, count) = (number(16), number(54), number(56));
    let mut is_program = kind != SHARED;
    for index in 0..u64::from(count) {
        let mut entry = [0; 40];
        let place = table.checked_add(index * u64::from(size))?;
        file.read_exact_at(&mut entry, place).ok()?;
        let word = |at: usize| Some(u64::from_le_bytes(*entry.get(at..)?.first_chunk()?));
        match u32::from_le_bytes(*entry.first_chunk()?) {
            INTERPRETER => return Some(false),
            DYNAMIC => is_program |= is_pie(file, word(8)?, word(32)?)?,
            _ => {}
        }
    }
    is_program.then_some(true)
}

/// Returns whether the dynamic section at `place` says that the file is a program.
fn is_pie(file: &File, place: u64, length: u64) -> Option<bool> {
    /// `DT_FLAGS_1`, `DF_1_PIE`.
    const FLAGS: u64 = 0x6fff_fffb;
    const PIE: u64 = 1 << 27;
    const MOST: u64 = 1 << 16;
    let mut bytes = vec![0; length.min(MOST) as usize];
    file.read_exact_at(&mut bytes, place).ok()?;
    let (words, _) = bytes.as_chunks::<8>();
    let (entries, _) = words.as_chunks::<2>();
    let entries = entries.iter().map(|entry| entry.map(u64::from_le_bytes));
    Some(entries.into_iter().any(|[tag, value]| tag == FLAGS && value & PIE != 0))
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

    /// It has no interpreter itself.
    #[test]
    fn the_interpreter_loads_libraries() {
        let interpreter = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
        for path in interpreter.into_iter().filter(|path| fs::exists(path).unwrap()) {
            assert_eq!(nothing(OsStr::new(path)), None, "{path}");
        }
    }

    #[test]
    fn a_program_without_an_interpreter_is_static() {
        let path = env::temp_dir().join(format!("barewire-static-{}", std::process::id()));
        let mut bytes = fs::read(env::current_exe().unwrap()).unwrap();
        // `ET_EXEC`, without program headers.
        bytes[16..18].copy_from_slice(&[2, 0]);
        bytes[56..58].fill(0);
        bytes.truncate(64);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(nothing(path.as_os_str()), Some("is statically linked"));
        fs::remove_file(&path).unwrap();
    }
}
