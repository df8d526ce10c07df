//! How many tests ran, from what test programs print.

/// Tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    /// Returns the sum over the test programs that printed `text`.
    pub(crate) fn of(text: &str) -> Self {
        let mut tally = Self::default();
        text.lines().for_each(|line| tally.read(line));
        tally
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Adds the numbers of a line, if it is the summary of a test program:
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    pub(crate) fn read(&mut self, line: &str) {
        let Some(summary) = line.trim().strip_prefix("test result: ") else { return };
        let words: Vec<&str> = summary.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse::<u64>() else { continue };
            match pair[1] {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_several_programs_are_added() {
        let text = "running 2 tests\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(Tally::of(text), Tally { passed: 3, failed: 2 });
    }

    #[test]
    fn other_lines_are_no_summary() {
        assert_eq!(Tally::of("5 passed, 0 failed\nresult: 1 passed"), Tally::default());
    }
}
