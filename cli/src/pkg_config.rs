//! `barewire uct pkg-config`: lets the linker take `libbarewire_uct.so` for UCX's libuct.

use crate::args::PkgConfigArgs;
use crate::error::{Error, local};
use crate::preload::Library;
use std::fs;
use std::io;
use std::path::Path;

/// What a program that is linked to the library loads.
const SONAME: &str = "libuct.so.0";
const FILE: &str = "barewire-uct.pc";

/// Writes the file, and a link to the library under the name that programs load.
pub(crate) fn write(library: &Library, args: &PkgConfigArgs) -> Result<(), Error> {
    let failed = |error: io::Error| {
        local(format!("cannot write the pkg-config file to {}", args.folder.display()), &error)
    };
    fs::create_dir_all(&args.folder).map_err(failed)?;
    let folder = args.folder.canonicalize().map_err(failed)?;
    let placed = args.libdir.as_deref().unwrap_or(&folder);
    if args.libdir.is_none() {
        let library = library.find()?.canonicalize().map_err(failed)?;
        let link = folder.join(SONAME);
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => std::os::unix::fs::symlink(library, link).map_err(failed)?,
        }
    }
    fs::write(folder.join(FILE), text(placed)).map_err(failed)
}

/// The contents of the file. pkg-config splits its options at blanks, unless they are escaped.
fn text(libdir: &Path) -> String {
    let libdir = libdir.to_string_lossy().replace('\\', "\\\\").replace(' ', "\\ ");
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "libdir={libdir}\n\n\
         Name: barewire-uct\n\
         Description: UCT's C interface over barewire's transports\n\
         URL: https://github.com/barewire/barewire\n\
         Version: {version}\n\
         Requires: ucx-ucs\n\
         Libs: -L${{libdir}} -Wl,-rpath,${{libdir}} -l:{SONAME}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_the_path_are_escaped() {
        let text = text(Path::new("/opt/my libraries"));
        assert!(text.starts_with("libdir=/opt/my\\ libraries\n"), "{text}");
        assert!(text.contains("Libs: -L${libdir} -Wl,-rpath,${libdir} -l:libuct.so.0\n"), "{text}");
    }
}
