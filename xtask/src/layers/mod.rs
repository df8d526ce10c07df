//! The layers of `src/`: which may import which, and circles of imports inside of them.
//!
//! Every name in the source without tests is resolved, through re-exports, to the file that defines
//! it. A name that cannot be resolved is a fault, so that nothing is overlooked.

mod graph;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::process::ExitCode;

use crate::process::{Failure, repository};
use graph::{Arrow, Graph};
use source::{Contents, Name, Source};

/// Folders of `src/`, and the folders that each may import. Files outside of them are the public
/// face, which may import everything.
const LAYERS: [(&str, &[&str]); 3] =
    [("base", &[]), ("transport", &["base"]), ("dynamic", &["base", "transport"])];

/// Crates of transports, which the lowest layer does not name, except for tables of `layouts`.
const CRATES: [&str; 5] =
    ["barewire_hca", "barewire_mlx5", "barewire_shm", "barewire_tcp", "barewire_verbs"];

/// Files that may pass on a name of a layer above: the file, the file of the name, the reason.
const FACES: [(&str, &str, &str); 1] = [(
    "transport/mod.rs",
    "dynamic/transport.rs",
    "users find the trait `Transport` beside the transports",
)];

/// Most files of a circle without a reason.
const MOST: usize = 3;

/// Larger circles: their files, and the reason.
const CIRCLES: [(&[&str], &str); 8] = [
    (
        &[
            "dynamic/domain.rs",
            "dynamic/endpoint.rs",
            "dynamic/event_set.rs",
            "dynamic/interface.rs",
            "dynamic/memory.rs",
            "dynamic/table.rs",
            "dynamic/transport.rs",
            "dynamic/worker.rs",
        ],
        "an enum opens objects of the others, and the trait that converts them names them all",
    ),
    (
        &[
            "dynamic/shared/completion.rs",
            "dynamic/shared/lock.rs",
            "dynamic/shared/ticket.rs",
            "dynamic/shared/wait.rs",
        ],
        "the lock carries out tickets of completions, which know whether their thread has the lock",
    ),
    (
        &[
            "transport/dc_mlx5/control.rs",
            "transport/dc_mlx5/initiator.rs",
            "transport/dc_mlx5/interface.rs",
            "transport/dc_mlx5/mod.rs",
            "transport/dc_mlx5/pool.rs",
            "transport/dc_mlx5/post.rs",
            "transport/dc_mlx5/progress.rs",
            "transport/dc_mlx5/state.rs",
        ],
        "one object: an interface, its endpoints, the initiators that they take, and its progress",
    ),
    (
        &[
            "transport/rc/address.rs",
            "transport/rc/driver.rs",
            "transport/rc/interface.rs",
            "transport/rc/mod.rs",
            "transport/rc/progress.rs",
            "transport/rc/shares.rs",
            "transport/rc/state.rs",
        ],
        "interfaces and endpoints are generic over a driver, whose functions take them",
    ),
    (
        &[
            "transport/rc_mlx5/driver.rs",
            "transport/rc_mlx5/mod.rs",
            "transport/rc_mlx5/probe.rs",
            "transport/rc_mlx5/receive.rs",
            "transport/rc_mlx5/tags/end.rs",
            "transport/rc_mlx5/tags/message.rs",
            "transport/rc_mlx5/tags/mod.rs",
        ],
        "the state of the driver has probes, receive buffers and tags, which are of its endpoints",
    ),
    (
        &[
            "transport/shm/connection.rs",
            "transport/shm/interface.rs",
            "transport/shm/mod.rs",
            "transport/shm/progress.rs",
            "transport/shm/state.rs",
        ],
        "one object: an interface, its connections, its endpoints and its progress",
    ),
    (
        &[
            "transport/tcp/connect.rs",
            "transport/tcp/event.rs",
            "transport/tcp/interface.rs",
            "transport/tcp/mod.rs",
            "transport/tcp/progress.rs",
            "transport/tcp/state.rs",
        ],
        "one object: an interface, its endpoints and its progress",
    ),
    (
        &[
            "transport/ud/address.rs",
            "transport/ud/delivered.rs",
            "transport/ud/driver.rs",
            "transport/ud/fast_path.rs",
            "transport/ud/interface.rs",
            "transport/ud/mod.rs",
            "transport/ud/progress.rs",
            "transport/ud/socket.rs",
            "transport/ud/state.rs",
        ],
        "interfaces, endpoints and sockets are generic over a driver, whose functions take them",
    ),
];

/// Checks the layers and the circles.
pub(crate) fn check() -> Result<(), Failure> {
    let folder = repository().join("src");
    let source = Source::read(&|path| fs::read_to_string(folder.join(path)).ok())?;
    let faults = faults(&source, &Graph::of(&source), &CIRCLES);
    for fault in &faults {
        println!("src/{fault}");
    }
    match faults.len() {
        0 => Ok(()),
        count => Err(Failure::Found(format!(
            "{count} faults in the layers of src/; 'cargo xtask layers' shows the circles"
        ))),
    }
}

/// Prints the circles with their arrows, and what is wrong.
pub(crate) fn layers() -> ExitCode {
    let folder = repository().join("src");
    let contents: &Contents<'_> = &|path| fs::read_to_string(folder.join(path)).ok();
    let source = match Source::read(contents) {
        Ok(source) => source,
        Err(failure) => {
            eprintln!("xtask: layers: {failure}");
            return ExitCode::FAILURE;
        }
    };
    let graph = Graph::of(&source);
    for circle in graph.circles() {
        println!("circle of {} files", circle.len());
        let inside = |arrow: &&Arrow| {
            circle.contains(&arrow.from) && circle.contains(&arrow.to) && !arrow.is_reexport
        };
        for arrow in graph.arrows.iter().filter(inside) {
            println!("  {}", arrow.text(&source));
        }
    }
    let faults = faults(&source, &graph, &CIRCLES);
    for fault in &faults {
        println!("src/{fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns what is wrong, each in a line.
fn faults(source: &Source, graph: &Graph, known: &[(&[&str], &str)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (file, line, name) in &graph.unknown {
        faults.push(format!("{}:{line}: no definition of {name} found", source.files[*file]));
    }
    for arrow in &graph.arrows {
        let [from, to] = [arrow.from, arrow.to].map(|file| source.files[file].as_str());
        let is_face = arrow.is_reexport && FACES.iter().any(|face| (face.0, face.1) == (from, to));
        if !is_face && !may_import(from, to) {
            faults.push(format!("{}: a layer above", arrow.text(source)));
        }
        if arrow.is_glob && !arrow.is_reexport {
            faults.push(format!("{}: import the names instead of *", arrow.text(source)));
        }
    }
    for module in &source.modules {
        let file = &source.files[module.file];
        let names = module.imports.iter().map(|import| &import.name).chain(&module.names);
        let of_transports = |name: &&Name| match &name.segments[..] {
            [_, second, ..] if second == "layouts" => false,
            [first, ..] => CRATES.contains(&first.as_str()),
            [] => false,
        };
        for name in names.filter(|_| file.starts_with("base/")).filter(of_transports) {
            let (line, text) = (name.line, name.segments.join("::"));
            faults.push(format!("{file}:{line}: {text}: a crate of transports"));
        }
    }
    let circles: Vec<BTreeSet<&str>> =
        graph.circles().iter().map(|circle| names(source, circle)).collect();
    let known: Vec<BTreeSet<&str>> =
        known.iter().map(|(files, _)| files.iter().copied().collect()).collect();
    for circle in circles.iter().filter(|circle| circle.len() > MOST && !known.contains(circle)) {
        let files: Vec<&str> = circle.iter().copied().collect();
        faults.push(format!("{}: {} files import each other", files.join(", "), files.len()));
    }
    for gone in known.iter().filter(|known| !circles.contains(known)) {
        let files: Vec<&str> = gone.iter().copied().collect();
        faults.push(format!("{}: no longer a circle: remove it from CIRCLES", files.join(", ")));
    }
    faults
}

fn names<'s>(source: &'s Source, files: &BTreeSet<usize>) -> BTreeSet<&'s str> {
    files.iter().map(|file| source.files[*file].as_str()).collect()
}

fn may_import(from: &str, to: &str) -> bool {
    let layer = |file: &str| LAYERS.iter().find(|layer| file.starts_with(&format!("{}/", layer.0)));
    match (layer(from), layer(to)) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some((from, below)), Some((to, _))) => from == to || below.contains(to),
    }
}

impl Arrow {
    fn text(&self, source: &Source) -> String {
        let [from, to] = [self.from, self.to].map(|file| &source.files[file]);
        format!("{from}:{}: {} of {to}", self.line, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the faults of a crate of these files.
    fn faults_of(files: &[(&str, &str)], known: &[(&[&str], &str)]) -> Vec<String> {
        let contents: &Contents<'_> = &|path| {
            let text = files.iter().find(|(name, _)| path.to_str() == Some(name));
            text.map(|(_, text)| (*text).to_owned())
        };
        let source = Source::read(contents).unwrap();
        faults(&source, &Graph::of(&source), known)
    }

    /// Returns the faults of `base/low.rs` with this text, below a transport and a dynamic layer.
    fn faults_of_base(low: &str) -> Vec<String> {
        faults_of(
            &[
                ("lib.rs", "mod base; pub mod transport; mod dynamic; pub use transport::Tcp;"),
                ("base/mod.rs", "pub mod low; pub mod other;"),
                ("base/low.rs", low),
                ("base/other.rs", "pub struct Other;"),
                ("transport/mod.rs", "pub mod tcp; pub use tcp::Tcp; pub use tcp::port as gate;"),
                ("transport/tcp.rs", "pub struct Tcp; pub mod port { pub fn open() {} }"),
                ("dynamic/mod.rs", "use crate::{Tcp, base::low}; fn f(_: Tcp) { low::g() }"),
            ],
            &[],
        )
    }

    #[test]
    fn imports_of_lower_layers_are_allowed() {
        assert_eq!(faults_of_base("use super::other::Other; pub fn g() {}"), [""; 0]);
        assert_eq!(
            faults_of_base("use std::fmt; pub fn g() -> crate::base::other::Other { todo!() }"),
            [""; 0]
        );
    }

    #[test]
    fn every_way_to_name_a_higher_layer_is_found() {
        for text in [
            "use crate::transport::tcp::Tcp;",
            "use crate::{base::other::Other, transport::{tcp::{self, Tcp as T}}};",
            // Through re-exports.
            "use crate::Tcp;",
            "use crate::transport as t; fn f(_: t::Tcp) {}",
            "fn f() { use super::super::transport; transport::gate::open() }",
            // In expressions, types and macros.
            "fn f() { crate::transport::tcp::port::open() }",
            "struct S<T>(T); impl S<crate::Tcp> {}",
            "fn f() { println!(\"{}\", crate::transport::gate::open()) }",
            "macro_rules! m { ($t:ident) => { use $crate::{base::other::Other, transport::{Tcp}}; } }",
            "macro_rules! m { ($t:ident) => { $crate::transport::$t::open() } }",
            "mod inner { mod deeper { use super::super::super::super::transport::Tcp; } }",
            "#[cfg(not(test))] use crate::Tcp;",
            "#[cfg(any(test, unix))] use crate::Tcp;",
        ] {
            let faults = faults_of_base(&format!("{text} pub fn g() {{}}"));
            assert!(
                faults.iter().any(|fault| fault.contains("a layer above")),
                "{text}: {faults:?}"
            );
        }
    }

    #[test]
    fn crates_of_transports_are_for_transports() {
        let faults = faults_of_base("fn f(_: &barewire_mlx5::Error) {} pub fn g() {}");
        assert_eq!(faults, ["base/low.rs:1: barewire_mlx5::Error: a crate of transports"]);
    }

    #[test]
    fn tests_may_name_every_layer() {
        for text in [
            "#[cfg(test)] use crate::Tcp;",
            "#[cfg(all(test, unix))] mod tests { use crate::Tcp; }",
            "struct S; impl S { #[cfg(test)] fn f(_: crate::Tcp) {} }",
            "// use crate::Tcp;\n/// `crate::Tcp`\nconst TEXT: &str = \"crate::Tcp\";",
        ] {
            assert_eq!(faults_of_base(&format!("{text}\npub fn g() {{}}")), [""; 0], "{text}");
        }
    }

    #[test]
    fn globs_and_names_that_are_not_found_are_faults() {
        for (text, fault) in [
            ("use super::absent::Name;", "no definition"),
            ("use super::other::*;", "instead of *"),
        ] {
            let faults = faults_of_base(&format!("{text} pub fn g() {{}}"));
            assert!(
                faults.iter().all(|found| found.contains(fault)) && faults.len() == 1,
                "{faults:?}"
            );
        }
    }

    #[test]
    fn circles_of_more_than_three_files_need_a_reason() {
        let circle = |files: usize, known: &[(&[&str], &str)]| {
            let names = ["a", "b", "c", "d"];
            let mods = names.map(|name| format!("mod {name};")).concat();
            let next =
                |at: usize| format!("pub fn f() {{ super::{}::f() }}", names[(at + 1) % files]);
            let texts: Vec<String> = (0..names.len()).map(next).collect();
            let paths = ["a.rs", "b.rs", "c.rs", "d.rs"];
            let mut all: Vec<(&str, &str)> =
                paths.into_iter().zip(texts.iter().map(String::as_str)).collect();
            all.push(("lib.rs", &mods));
            faults_of(&all, known)
        };
        assert_eq!(circle(3, &[]), [""; 0]);
        assert_eq!(circle(4, &[]), ["a.rs, b.rs, c.rs, d.rs: 4 files import each other"]);
        let known: (&[&str], &str) = (&["a.rs", "b.rs", "c.rs", "d.rs"], "one object");
        assert_eq!(circle(4, &[known]), [""; 0]);
        assert_eq!(circle(3, &[known]).len(), 1, "a reason for a circle that is gone");
    }
}
