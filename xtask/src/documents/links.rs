//! Every path and anchor that a document names exists.

use std::collections::BTreeSet;

use super::markdown::Document;
use super::{Faults, REPOSITORY};

/// Pages that do not exist before the crates are published.
const UNPUBLISHED: [&str; 4] = [
    "docs.rs/barewire",
    "docs.rs/crate/barewire",
    "crates.io/crates/barewire",
    "img.shields.io/crates",
];

/// Endings of files that a document may name without their folder.
const ENDINGS: [&str; 5] = [".rs", ".md", ".toml", ".svg", ".py"];

/// The files and folders of the repository.
#[derive(Debug)]
pub(super) struct Tree(BTreeSet<String>);

impl Tree {
    pub(super) fn new(files: &[String]) -> Self {
        let mut paths = BTreeSet::from([String::new()]);
        for file in files {
            paths.insert(file.clone());
            paths.extend(file.match_indices('/').map(|(end, _)| file[..end].to_owned()));
        }
        Self(paths)
    }

    /// Returns the path from the root for a path from a folder, if it exists.
    fn find(&self, folder: &str, path: &str) -> Option<String> {
        let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
        for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
            if part == ".." {
                parts.pop()?;
            } else {
                parts.push(part);
            }
        }
        let path = parts.join("/");
        self.0.contains(&path).then_some(path)
    }

    /// Returns whether a path has this end: `hca/src/engine/fetch.rs` has `engine/fetch.rs`.
    fn has_end(&self, end: &str) -> bool {
        let end = end.trim_end_matches('/');
        self.0.iter().any(|path| {
            path.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        })
    }

    fn is_folder_of_root(&self, name: &str) -> bool {
        let inside = format!("{name}/");
        self.0.range(inside.clone()..).next().is_some_and(|path| path.starts_with(&inside))
    }

    /// Returns whether a text between backticks is a path that does not exist.
    fn lacks(&self, folder: &str, span: &str) -> bool {
        let of_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let first = span.split('/').next().unwrap_or_default();
        if !span.chars().all(of_path) || matches!(first, "" | "." | ".." | "target") {
            return false;
        }
        if self.find(folder, span).is_some() || self.find("", span).is_some() {
            return false;
        }
        let is_file = ENDINGS.iter().any(|ending| span.ends_with(ending));
        if span.contains('/') && self.is_folder_of_root(first) {
            return true;
        }
        // The end of a path, whose folder the text around it names.
        (is_file || span.ends_with('/')) && !self.has_end(span)
    }
}

/// Checks the links and the paths in backticks.
pub(super) fn check(documents: &[Document], tree: &Tree, faults: &mut Faults) {
    for document in documents {
        let folder = document.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, link) in &document.links {
            if let Err(what) = follow(documents, tree, document, folder, link) {
                faults.add(&document.path, *line, format!("link to {link}: {what}"));
            }
        }
        for (line, span) in document.spans.iter().filter(|(_, span)| tree.lacks(folder, span)) {
            faults.add(&document.path, *line, format!("`{span}` does not exist"));
        }
    }
}

fn follow(
    documents: &[Document],
    tree: &Tree,
    document: &Document,
    folder: &str,
    link: &str,
) -> Result<(), &'static str> {
    let own = link.strip_prefix(REPOSITORY).and_then(|rest| {
        rest.strip_prefix("/blob/main/").or_else(|| rest.strip_prefix("/tree/main/"))
    });
    let (folder, target) = match own {
        Some(path) => ("", path),
        None if UNPUBLISHED.iter().any(|page| link.contains(page)) => {
            return Err("no such page before the crates are published");
        }
        // Other sites; and `plain` refuses links of rustdoc.
        None if link.contains("://") || link.starts_with("crate::") => return Ok(()),
        None => (folder, link),
    };
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let there = if path.is_empty() {
        Some(document)
    } else {
        let path = tree.find(folder, path).ok_or("no such file")?;
        documents.iter().find(|document| document.path == path)
    };
    match there {
        Some(there) if !anchor.is_empty() && !there.anchors.contains(anchor) => {
            Err("no such heading")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 4] =
        ["README.md", "hca/README.md", "hca/src/engine/fetch.rs", "shm/src/lib.rs"];

    fn faults(path: &str, text: &str) -> Vec<String> {
        let other = Document::parse("README.md", "# Try it\n");
        let documents = [Document::parse(path, text), other];
        let mut faults = Faults::default();
        check(&documents, &Tree::new(&FILES.map(str::to_owned)), &mut faults);
        faults.texts()
    }

    #[test]
    fn existing_paths_and_anchors_are_no_faults() {
        let text = "# Use it\n[a](#use-it) [b](../README.md#try-it) [c](src/engine) [d](https://x.org) \
            [e](https://github.com/barewire/barewire/blob/main/shm/src/lib.rs) [f](crate::A#b)\n\
            `src/engine/`, `hca/src/engine/fetch.rs`, `engine/fetch.rs`, `fetch.rs`, `tcp/lo`, \
            `/dev/shm`, `target/debug/x.rs`, `Message::split`\n";
        assert_eq!(faults("hca/README.md", text), [""; 0]);
    }

    #[test]
    fn missing_files_headings_and_pages_are_faults() {
        let text = "[a](#use-it)\n[b](../README.md#nothing)\n[c](lib.rs)\n[d](../../x)\n\
            ![e](https://docs.rs/barewire)\n[f](https://github.com/barewire/barewire/blob/main/x)\n";
        let expected = [
            "hca/README.md:1: link to #use-it: no such heading",
            "hca/README.md:2: link to ../README.md#nothing: no such heading",
            "hca/README.md:3: link to lib.rs: no such file",
            "hca/README.md:4: link to ../../x: no such file",
            "hca/README.md:5: link to https://docs.rs/barewire: no such page before the crates are \
             published",
            "hca/README.md:6: link to https://github.com/barewire/barewire/blob/main/x: no such file",
        ];
        assert_eq!(faults("hca/README.md", text), expected);
    }

    #[test]
    fn paths_in_backticks_that_do_not_exist_are_faults() {
        let text = "`shm/src/ring.rs`\n`ring.rs`\n`engine/ring/`\n`ngine/fetch.rs`\n";
        let expected = [
            "a.md:1: `shm/src/ring.rs` does not exist",
            "a.md:2: `ring.rs` does not exist",
            "a.md:3: `engine/ring/` does not exist",
            "a.md:4: `ngine/fetch.rs` does not exist",
        ];
        assert_eq!(faults("a.md", text), expected);
    }
}
