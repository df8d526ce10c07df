//! NVIDIA's libnccl: its loader of plugins, its adapters of their versions, and its own network.
//!
//! None of them is exported, so they are found by the symbol table of the file.

use core::ffi::{c_char, c_int, c_void};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use nccl_net_barewire::abi::Net12;

/// A loaded library and the places of its functions.
pub(crate) struct Library {
    base: usize,
    places: HashMap<String, usize>,
    /// The address of `ncclGetVersion`.
    version: usize,
}

type Version = extern "C" fn(*mut c_int) -> c_int;

fn word<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(word)
}

fn bytes(file: &mut File, at: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The symbols of an ELF file of 64 bits that begin with one of `names`.
fn symbols(path: &Path, names: &[&str]) -> std::io::Result<HashMap<String, usize>> {
    const SYMBOLS: u64 = 2;
    let mut file = File::open(path)?;
    let header = bytes(&mut file, 0, 64)?;
    let (start, size, count) =
        (word::<8>(&header, 0x28), word::<2>(&header, 0x3a), word::<2>(&header, 0x3c));
    let sections = bytes(&mut file, start, size * count)?;
    let section = |number: u64| &sections[(number * size) as usize..][..size as usize];
    let mut found = HashMap::new();
    for table in (0..count).map(section).filter(|table| word::<4>(table, 4) == SYMBOLS) {
        let strings = section(word::<4>(table, 0x28));
        let entries = bytes(&mut file, word::<8>(table, 0x18), word::<8>(table, 0x20))?;
        let strings = bytes(&mut file, word::<8>(strings, 0x18), word::<8>(strings, 0x20))?;
        for entry in entries.chunks_exact(24) {
            let name = &strings[word::<4>(entry, 0) as usize..];
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
            let name = String::from_utf8_lossy(&name[..end]);
            if names.iter().any(|wanted| name.starts_with(wanted)) {
                found.insert(name.into_owned(), word::<8>(entry, 8) as usize);
            }
        }
    }
    Ok(found)
}

impl Library {
    pub(crate) fn open(path: &str) -> Self {
        let names =
            ["ncclNetIb", "_Z20ncclOpenNetPluginLib", "_Z13getNcclNet_v", "_Z14getNcclNet_v"];
        let places = symbols(Path::new(path), &names).expect("a library with its symbols");
        let name = CString::new(path).expect("a path");
        // SAFETY: the initialisers of libnccl do nothing that this process minds, and `dladdr`
        // writes the information of an address.
        let (base, version) = unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null(), "BAREWIRE_LIBNCCL names no library: {path}");
            let version = libc::dlsym(library, c"ncclGetVersion".as_ptr());
            assert!(!version.is_null(), "BAREWIRE_LIBNCCL is no libnccl: {path}");
            let mut info = std::mem::zeroed::<libc::Dl_info>();
            assert_ne!(libc::dladdr(version, &raw mut info), 0, "libnccl's address");
            (info.dli_fbase as usize, version as usize)
        };
        Self { base, places, version }
    }

    fn place(&self, name: &str) -> usize {
        self.base + self.places.get(name).unwrap_or_else(|| panic!("libnccl has no {name}"))
    }

    /// The release, such as 2.32.3.
    pub(crate) fn version(&self) -> String {
        let mut code: c_int = 0;
        // SAFETY: `open` has found this function, which writes a number.
        unsafe {
            let version = std::mem::transmute::<usize, Version>(self.version);
            version(&raw mut code);
        }
        format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
    }

    /// NVIDIA's network for RDMA devices.
    pub(crate) fn net_ib(&self) -> &'static Net12 {
        // SAFETY: the library is never unloaded, and its symbol has the table of version 12.
        unsafe { &*(self.place("ncclNetIb") as *const Net12) }
    }

    /// The table of `version` of a plugin, loaded and adapted to version 12 by NVIDIA's code.
    pub(crate) fn adapted(&self, plugin: &Path, version: u32) -> &'static Net12 {
        type Open = extern "C" fn(*const c_char) -> *mut c_void;
        type Adapter = extern "C" fn(*mut c_void) -> *const Net12;
        let path = CString::new(plugin.to_str().expect("a path")).expect("a path");
        let digits = if version < 10 { 13 } else { 14 };
        let adapter = self.place(&format!("_Z{digits}getNcclNet_v{version}Pv"));
        // SAFETY: the symbols are those of functions with these types, and tables are never freed.
        unsafe {
            let open: Open = std::mem::transmute(self.place("_Z20ncclOpenNetPluginLibPKc"));
            let adapter: Adapter = std::mem::transmute(adapter);
            let plugin = open(path.as_ptr());
            assert!(!plugin.is_null(), "NVIDIA's loader refuses {}", path.to_string_lossy());
            adapter(plugin).as_ref().expect("an adapter of this version")
        }
    }
}
