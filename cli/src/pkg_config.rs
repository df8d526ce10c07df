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
        link(&library, &folder.join(SONAME)).map_err(failed)?;
    }
    fs::write(folder.join(FILE), text(placed)).map_err(failed)
}

/// Creates a link to `library`, or replaces one to another place of it: nothing else, such as UCX's
/// library.
fn link(library: &Path, at: &Path) -> io::Result<()> {
    match fs::read_link(at) {
        Ok(target) if target.file_name() == library.file_name() => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => {
            let exists =
                format!("{} exists and is not barewire's: name another folder", at.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, exists));
        }
    }
    let new = at.with_extension(format!("new.{}", std::process::id()));
    std::os::unix::fs::symlink(library, &new)?;
    fs::rename(new, at)
}

/// The contents of the file. The linker keeps the library although the program may call only
/// libucp, which needs the one of this name. pkg-config splits its options at blanks, unless they
/// are escaped.
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
         Libs: -L${{libdir}} -Wl,-rpath,${{libdir}} \
         -Wl,--push-state,--no-as-needed -l:{SONAME} -Wl,--pop-state\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_link_is_replaced() {
        let folder = std::env::temp_dir().join(format!("barewire-link.{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (one, two) = (folder.join("a/lib.so"), folder.join("b/lib.so"));
        let at = folder.join(SONAME);
        link(&one, &at).unwrap();
        link(&two, &at).unwrap();
        assert_eq!(fs::read_link(&at).unwrap(), two);
        let other = folder.join("libother.so");
        assert_eq!(link(&other, &at).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&at).unwrap();
        fs::write(&at, "UCX").unwrap();
        assert_eq!(link(&one, &at).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&at).unwrap(), b"UCX");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn blanks_in_the_path_are_escaped() {
        let text = text(Path::new("/opt/my libraries"));
        assert!(text.starts_with("libdir=/opt/my\\ libraries\n"), "{text}");
        let libraries = "-Wl,--push-state,--no-as-needed -l:libuct.so.0 -Wl,--pop-state\n";
        assert!(text.contains(&format!("${{libdir}} {libraries}")), "{text}");
    }
}
