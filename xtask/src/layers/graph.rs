//! Which file needs which: every name, resolved to the file that defines it.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Import, Module, Name, Source};

/// A name in one file that is defined in another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrow {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) line: usize,
    pub(super) name: String,
    /// The file only re-exports the name. A file that uses the name imports the defining file.
    pub(super) is_reexport: bool,
    /// The name is a module with everything in it.
    pub(super) is_glob: bool,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// An item of this file.
    Item(usize),
    Module(usize),
    /// Of another crate.
    Elsewhere,
}

/// Imports of imports that are followed.
const DEPTH: usize = 16;

pub(super) struct Graph {
    pub(super) arrows: BTreeSet<Arrow>,
    /// Names of this crate that could not be found, with file and line.
    pub(super) unknown: Vec<(usize, usize, String)>,
}

impl Graph {
    pub(super) fn of(source: &Source) -> Self {
        let mut graph = Self { arrows: BTreeSet::new(), unknown: vec![] };
        for (number, module) in source.modules.iter().enumerate() {
            for Import { name, is_reexport, alias } in &module.imports {
                graph.add(source, number, name, *is_reexport, alias.is_none());
            }
            for name in &module.names {
                graph.add(source, number, name, false, name.is_open);
            }
        }
        graph
    }

    /// Adds the arrows of a name. That of a whole module leads to its file if `whole`.
    fn add(&mut self, source: &Source, module: usize, name: &Name, is_reexport: bool, whole: bool) {
        let from = source.modules[module].file;
        let targets = source.resolve(module, &name.segments, DEPTH);
        let text = name.segments.join("::");
        if targets.is_empty() && name.is_own() {
            self.unknown.push((from, name.line, text));
            return;
        }
        for target in targets {
            let to = match target {
                Target::Item(file) => file,
                Target::Module(module) if whole => source.modules[module].file,
                Target::Module(_) | Target::Elsewhere => continue,
            };
            if to != from {
                let is_glob = whole && !name.is_open && matches!(target, Target::Module(_));
                let (line, name) = (name.line, text.clone());
                self.arrows.insert(Arrow { from, to, line, name, is_reexport, is_glob });
            }
        }
    }

    /// Returns which files each file needs.
    fn needs(&self) -> BTreeMap<usize, BTreeSet<usize>> {
        let mut needs = BTreeMap::<usize, BTreeSet<usize>>::new();
        for arrow in self.arrows.iter().filter(|arrow| !arrow.is_reexport) {
            needs.entry(arrow.from).or_default().insert(arrow.to);
        }
        needs
    }

    /// Returns the sets of files each of which needs all others of its set, the largest first.
    pub(super) fn circles(&self) -> Vec<BTreeSet<usize>> {
        let needs = self.needs();
        let reachable: BTreeMap<usize, BTreeSet<usize>> =
            needs.keys().map(|&file| (file, reachable(&needs, file))).collect();
        let mut circles = BTreeSet::new();
        for (file, others) in &reachable {
            let back =
                |other: &&usize| reachable.get(other).is_some_and(|files| files.contains(file));
            let circle: BTreeSet<usize> = others.iter().filter(back).copied().collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        let mut circles: Vec<_> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

fn reachable(needs: &BTreeMap<usize, BTreeSet<usize>>, from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        for &other in needs.get(&file).into_iter().flatten() {
            if found.insert(other) {
                next.push(other);
            }
        }
    }
    found
}

impl Source {
    /// Returns what a path in a module leads to; nothing for names of other crates, and local ones.
    fn resolve(&self, module: usize, path: &[String], depth: usize) -> BTreeSet<Target> {
        let Some((first, rest)) = path.split_first() else {
            return [Target::Module(module)].into();
        };
        match first.as_str() {
            "crate" => self.descend(0, rest, depth),
            "self" => self.descend(module, rest, depth),
            "super" => match self.modules[module].parent {
                Some(parent) => self.resolve_super(parent, rest, depth),
                None => BTreeSet::new(),
            },
            _ => self.descend(module, path, depth),
        }
    }

    fn resolve_super(&self, module: usize, path: &[String], depth: usize) -> BTreeSet<Target> {
        match path.first().map(String::as_str) {
            Some("super") => self.resolve(module, path, depth),
            _ => self.descend(module, path, depth),
        }
    }

    /// Returns what a path leads to whose first segment is in this module.
    fn descend(&self, module: usize, path: &[String], depth: usize) -> BTreeSet<Target> {
        let Some((first, rest)) = path.split_first() else {
            return [Target::Module(module)].into();
        };
        let this = &self.modules[module];
        if let Some(&child) = this.children.get(first)
            && (!rest.is_empty() || !this.items.contains(first))
        {
            let below = self.descend(child, rest, depth);
            if !below.is_empty() || !this.items.contains(first) {
                return below;
            }
        }
        if this.items.contains(first) {
            return [Target::Item(this.file)].into();
        }
        let imported = self.imported(module, this, first, rest, depth);
        if imported.is_empty() && this.generated.contains(first) {
            return [Target::Item(this.file)].into();
        }
        imported
    }

    fn imported(
        &self,
        number: usize,
        module: &Module,
        first: &String,
        rest: &[String],
        depth: usize,
    ) -> BTreeSet<Target> {
        let mut targets = BTreeSet::new();
        let Some(depth) = depth.checked_sub(1) else { return targets };
        for import in module.imports.iter().filter(|import| import.alias.as_ref() == Some(first)) {
            // A name that an import of the same name gives cannot be the import itself.
            if import.name.segments.first() == Some(first) {
                continue;
            }
            let found = self.resolve(number, &import.name.segments, depth);
            if found.is_empty() && !import.name.is_own() {
                targets.insert(Target::Elsewhere);
            }
            for target in found {
                match target {
                    Target::Module(module) => targets.extend(self.descend(module, rest, depth)),
                    Target::Item(_) | Target::Elsewhere => drop(targets.insert(target)),
                }
            }
        }
        if targets.is_empty() {
            for import in module.imports.iter().filter(|import| import.alias.is_none()) {
                for target in self.resolve(number, &import.name.segments, depth) {
                    if let Target::Module(other) = target
                        && other != number
                    {
                        let path = [std::slice::from_ref(first), rest].concat();
                        targets.extend(self.descend(other, &path, depth));
                    }
                }
            }
        }
        targets
    }
}
