//! The peers' counts of the same operations: `benches/peers/counts.txt`.

use std::fs;

use super::budget::{self, Budget, Level, Shape};
use crate::process::{Failure, repository};

const FILE: &str = "benches/peers/counts.txt";

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    level: Level,
    operation: String,
    /// `None` for both shapes.
    shape: Option<Shape>,
    peer: String,
    instructions: u64,
}

/// The peers' counts.
#[derive(Debug)]
pub(super) struct Peers(Vec<Entry>);

impl Peers {
    /// Returns the peers with counts at this level, in the order of the file.
    pub(super) fn of(&self, level: Level) -> Vec<&str> {
        let mut peers: Vec<&str> = Vec::new();
        for entry in self.0.iter().filter(|entry| entry.level == level) {
            if !peers.contains(&entry.peer.as_str()) {
                peers.push(&entry.peer);
            }
        }
        peers
    }

    /// Returns the instructions of `peer` for the operation.
    pub(super) fn instructions(&self, budget: &Budget, peer: &str) -> Option<u64> {
        self.0
            .iter()
            .find(|entry| entry.is_for(budget) && entry.peer == peer)
            .map(|entry| entry.instructions)
    }
}

impl Entry {
    fn is_for(&self, budget: &Budget) -> bool {
        self.level == budget.level
            && self.operation == budget.operation
            && self.shape.is_none_or(|shape| shape == budget.shape)
    }
}

/// Reads the file.
pub(super) fn read() -> Result<Peers, Failure> {
    let path = repository().join(FILE);
    let text = fs::read_to_string(&path)
        .map_err(|error| Failure::Found(format!("cannot read {}: {error}", path.display())))?;
    let peers = parse(&text)?;
    match peers.0.iter().find(|entry| !budget::all().any(|budget| entry.is_for(budget))) {
        Some(stray) => {
            Err(Failure::Found(format!("{FILE}: no bench measures '{}'", stray.operation)))
        }
        None => Ok(peers),
    }
}

fn parse(text: &str) -> Result<Peers, Failure> {
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let entries = lines.map(|(at, line)| {
        entry(line)
            .ok_or_else(|| Failure::Found(format!("{FILE}:{}: cannot read '{line}'", at + 1)))
    });
    entries.collect::<Result<_, _>>().map(Peers)
}

fn entry(line: &str) -> Option<Entry> {
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    let [level, operation, shape, peer, instructions] = fields[..] else { return None };
    let level = Level::ALL.into_iter().find(|known| known.name() == level)?;
    let shape = match shape {
        "both" => None,
        one => Some([Shape::Held, Shape::Inlined].into_iter().find(|known| known.name() == one)?),
    };
    let (operation, peer) = (operation.to_owned(), peer.to_owned());
    Some(Entry { level, operation, shape, peer, instructions: instructions.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_belongs_to_the_benches() {
        let peers = read().unwrap();
        assert_eq!(peers.of(Level::Driver), ["libmlx5", "copyrpc"]);
        let write = budget::all().find(|budget| budget.bench == "write_8").unwrap();
        assert_eq!(peers.instructions(write, "copyrpc"), Some(107));
        assert_eq!(peers.instructions(write, "libmlx5"), Some(336));
    }

    #[test]
    fn says_which_line_is_wrong() {
        let text = "# a comment\n\napi | put_short, 8 B | both | UCX | many\n";
        let failure = parse(text).unwrap_err().to_string();
        assert_eq!(
            failure,
            "benches/peers/counts.txt:3: cannot read 'api | put_short, 8 B | both | UCX | many'"
        );
        assert!(parse("api | put | sideways | UCX | 3").is_err());
    }
}
