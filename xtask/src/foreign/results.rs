//! Results of a unit of a suite, and the list of known differences.

use std::collections::BTreeSet;

/// The list, which is part of this program.
const KNOWN: &str = include_str!("known.txt");

/// What a unit's script printed: how many tests passed, and which failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Results {
    pub(super) passed: u64,
    pub(super) failed: BTreeSet<String>,
}

impl Results {
    /// Parses lines `passed COUNT` and `failed TEST`. Others are output of the tests.
    pub(super) fn of(printed: &str) -> Self {
        let mut results = Self::default();
        for line in printed.lines() {
            if let Some(test) = line.strip_prefix("failed ") {
                results.add_failed(test.to_owned());
            } else if let Some(count) = line.strip_prefix("passed ") {
                results.passed += count.trim().parse().unwrap_or(0);
            }
        }
        results
    }

    pub(super) fn add_failed(&mut self, test: String) {
        self.failed.insert(test);
    }

    /// Returns the failed tests that `known` does not name.
    pub(super) fn without(&self, known: &BTreeSet<&str>) -> BTreeSet<String> {
        self.failed.iter().filter(|test| !known.contains(test.as_str())).cloned().collect()
    }
}

/// Returns the tests of a suite that may fail over these transports.
pub(super) fn known(suite: &str, transports: &str) -> BTreeSet<&'static str> {
    lines(KNOWN)
        .filter(|line| line[0] == suite && [transports, "*"].contains(&line[1]))
        .map(|line| line[2])
        .collect()
}

/// Returns the fields of each line: suite, transports, test, reason.
fn lines(text: &str) -> impl Iterator<Item = [&str; 4]> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split('\t').collect::<Vec<_>>().try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_names_are_read_between_other_output() {
        let results = Results::of("ok\npassed 3\nfailed testA (b.C)\nit passed 9\npassed 2\n");
        assert_eq!(results.passed, 5);
        assert_eq!(results.failed, BTreeSet::from(["testA (b.C)".to_owned()]));
        assert!(results.without(&BTreeSet::from(["testA (b.C)"])).is_empty());
        assert_eq!(results.without(&BTreeSet::new()).len(), 1);
    }

    #[test]
    fn every_line_of_known_differences_has_its_four_fields() {
        let stated = KNOWN.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(lines(KNOWN).count(), stated);
    }
}
