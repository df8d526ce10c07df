//! `cargo xtask release`: the files of a release, and a check of each on a bare Debian.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::deb;
use crate::documents::{at, bare};
use crate::process::{self, Failure, Invocation, Output, repository};

const SOON: Duration = Duration::from_mins(2);
const INSTALL: Duration = Duration::from_mins(20);
/// Relative to the repository.
const FOLDER: &str = "target/release-files";
const CONTAINER: &str = "cli/release/Containerfile";
/// Files of the archive: what is built, and its name. The program finds the libraries beside it.
const PROGRAMS: [(&str, &str); 3] = [
    ("barewire", "barewire"),
    ("barewire-hca-preload", "libbarewire_hca.so"),
    ("barewire-uct-preload", "libbarewire_uct.so"),
];
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Enters the machine, whose root is `$1`, and runs `$2` in its folder of files.
const ENTER: &str = r#"
set -e
mount --rbind /dev "$1/dev"
mount --rbind /sys "$1/sys"
mount -t proc proc "$1/proc"
cp /etc/resolv.conf "$1/etc/resolv.conf"
exec chroot "$1" /usr/bin/env -i HOME=/root DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /bin/sh -exc "cd /files; $2"
"#;

/// Names the path in an error.
fn of(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| at(path, &error)
}

/// Makes the Debian package, the archive and the file for containers.
pub(crate) fn make() -> Result<PathBuf, Failure> {
    deb::package()?;
    let folder = repository().join(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(of(&folder))?;
    }
    let name = format!("barewire-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let contents = folder.join(&name);
    fs::create_dir_all(&contents).map_err(of(&contents))?;
    for (built, placed) in PROGRAMS {
        let built = repository().join("target/release").join(built);
        fs::copy(&built, contents.join(placed)).map_err(of(&built))?;
    }
    for text in TEXTS {
        fs::copy(repository().join(text), contents.join(text)).map_err(of(Path::new(text)))?;
    }
    let archive = format!("{name}.tar.gz");
    let folder_name = folder.display().to_string();
    let owner = ["--owner=0", "--group=0", "--sort=name"];
    let tar = Invocation::new("tar", &["-C", &folder_name, "-czf"])
        .with(&[&format!("{folder_name}/{archive}"), &name])
        .with(&owner);
    process::run(&tar, SOON, Output::Inherit)?;
    fs::remove_dir_all(&contents).map_err(of(&contents))?;
    let packages = repository().join("target/debian");
    let found = fs::read_dir(&packages).map_err(of(&packages))?.flatten().map(|file| file.path());
    let newest = found
        .filter(|path| path.extension().is_some_and(|kind| kind == "deb"))
        .max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    let package = newest.ok_or_else(|| Failure::Found("cargo-deb made no package".to_owned()))?;
    fs::copy(&package, folder.join("barewire.deb")).map_err(of(&package))?;
    fs::copy(repository().join(CONTAINER), folder.join("Containerfile"))
        .map_err(of(Path::new(CONTAINER)))?;
    let sums = Invocation::new("sh", &["-c", "sha256sum * > SHA256SUMS && cat SHA256SUMS"]);
    process::run(&sums.in_folder(&folder), SOON, Output::Inherit)?;
    Ok(folder)
}

/// Makes the files, and uses them on a Debian that has nothing else: the archive, and what the file
/// for containers does.
pub(crate) fn check() -> Result<(), Failure> {
    let files = make()?;
    let root = repository().join("target/bare-release");
    bare::debian(&root, &[])?;
    let placed = root.join("files");
    fs::create_dir_all(&placed).map_err(of(&placed))?;
    for file in fs::read_dir(&files).map_err(of(&files))?.flatten() {
        fs::copy(file.path(), placed.join(file.file_name())).map_err(of(&placed))?;
    }
    let text =
        fs::read_to_string(repository().join(CONTAINER)).map_err(of(Path::new(CONTAINER)))?;
    let script = script(&text)?;
    println!("on a bare Debian:\n{script}");
    let enter = Invocation::new("unshare", &["--mount", "--pid", "--fork", "--kill-child"])
        .with(&["sh", "-c", ENTER, "enter", &root.display().to_string(), &script]);
    process::run(&enter, INSTALL, Output::Inherit)?;
    fs::remove_dir_all(&root).map_err(of(&root))
}

/// The commands that use the archive, and those of the file for containers, in the order in which a
/// container runs them.
fn script(container: &str) -> Result<String, Failure> {
    let list = |name: &str| -> Result<String, Failure> {
        let line = container.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.ok_or_else(|| Failure::Found(format!("{CONTAINER} has no {name}")))?;
        let words: Vec<&str> = line.trim_matches(['[', ']']).split(", ").collect();
        Ok(words.iter().map(|word| word.trim_matches('"')).collect::<Vec<_>>().join(" "))
    };
    let mut lines = vec![
        "sha256sum -c SHA256SUMS".to_owned(),
        "tar -xzf barewire-*.tar.gz".to_owned(),
        "barewire-*-linux/barewire perf -x shm -t am_lat -n 1000".to_owned(),
        "cp barewire.deb /tmp/".to_owned(),
    ];
    lines.extend(container.lines().filter_map(|line| line.strip_prefix("RUN ")).map(str::to_owned));
    lines.push(format!("{} {} > devices", list("ENTRYPOINT")?, list("CMD")?));
    lines.push("cat devices && grep -q 'hca_id:.*mlx5_0' devices".to_owned());
    // The archive's own libraries, now that libibverbs is there.
    lines.push("barewire-*-linux/barewire hca run -- ibv_devinfo | grep -q PORT_ACTIVE".to_owned());
    lines.push("barewire --version".to_owned());
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_every_command_of_the_file_for_containers() {
        let container = fs::read_to_string(repository().join(CONTAINER)).unwrap();
        let script = script(&container).unwrap();
        assert_eq!(container.matches("\nRUN ").count(), 2);
        for line in container.lines().filter_map(|line| line.strip_prefix("RUN ")) {
            assert!(script.lines().any(|known| known == line), "{line}");
        }
        assert!(script.contains("\nbarewire hca run -- ibv_devinfo > devices\n"), "{script}");
        assert!(super::script("FROM x").is_err());
    }
}
