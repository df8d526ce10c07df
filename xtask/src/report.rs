//! The report at the end of a run.

use std::fmt::Write;
use std::time::Duration;

use crate::count::Tally;

/// One finished step.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    /// Of all processors together. Unlike `took`, it hardly depends on what else the machine does.
    pub(crate) processor: Duration,
    pub(crate) passed: bool,
}

/// Prints the table of steps, what was left out, and as the last line `N passed, M failed` (tests
/// and steps together), which CI reads.
pub(crate) fn closing(steps: &[Done], tests: Tally, left_out: &[String]) -> String {
    let mut text = String::new();
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or(0).max("step".len());
    let total: Duration = steps.iter().map(|step| step.took).sum();
    let processor: Duration = steps.iter().map(|step| step.processor).sum();
    let _ = writeln!(text, "{:width$}  seconds  of CPUs  result", "step");
    for step in steps {
        let result = if step.passed { "passed" } else { "FAILED" };
        let (took, processor) = (step.took.as_secs_f64(), step.processor.as_secs_f64());
        let _ = writeln!(text, "{:width$}  {took:7.1}  {processor:7.1}  {result}", step.name);
    }
    let (total, processor) = (total.as_secs_f64(), processor.as_secs_f64());
    let _ = writeln!(text, "{:width$}  {total:7.1}  {processor:7.1}", "total");
    for reason in left_out {
        let _ = writeln!(text, "left out: {reason}");
    }
    let passed_steps = steps.iter().filter(|step| step.passed).count() as u64;
    let failed_steps = steps.len() as u64 - passed_steps;
    let _ = writeln!(text, "{} tests and {} steps:", tests.passed + tests.failed, steps.len());
    let _ = writeln!(
        text,
        "{} passed, {} failed",
        tests.passed + passed_steps,
        tests.failed + failed_steps
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_with_the_line_that_is_read() {
        let (took, processor) = (Duration::from_millis(1500), Duration::from_secs(2));
        let step = |name, passed| Done { name, took, processor, passed };
        let text = closing(
            &[step("format", true), step("tests", false)],
            Tally { passed: 40, failed: 2 },
            &["feature x: missing y".to_owned()],
        );
        assert_eq!(
            text,
            "step    seconds  of CPUs  result\nformat      1.5      2.0  passed\n\
             tests       1.5      2.0  FAILED\ntotal       3.0      4.0\n\
             left out: feature x: missing y\n42 tests and 2 steps:\n41 passed, 3 failed\n"
        );
    }
}
