//! The congestion window: additive increase, multiplicative decrease (Chiu and Jain; as TCP, RFC
//! 5681).

use super::WINDOW;

const LEAST: u32 = 2;

#[derive(Debug)]
pub(super) struct Congestion {
    window: u32,
    /// Below it, each acknowledged message widens the window by one; above it, each acknowledged
    /// window does.
    threshold: u32,
    /// Acknowledged messages that have not widened the window yet.
    credit: u32,
}

impl Congestion {
    pub(super) fn new() -> Self {
        // A fabric normally loses nothing: the window starts at the receiver's limit.
        Self { window: WINDOW, threshold: WINDOW, credit: 0 }
    }

    pub(super) fn window(&self) -> u32 {
        self.window
    }

    pub(super) fn acknowledged(&mut self, count: u32) {
        self.credit += count;
        let step = if self.window < self.threshold { 1 } else { self.window };
        let wider = self.credit / step;
        self.credit %= step;
        self.window = (self.window + wider).min(WINDOW);
    }

    /// Handles a loss that later arrivals show.
    pub(super) fn lost(&mut self) {
        self.threshold = (self.window / 2).max(LEAST);
        self.window = self.threshold;
        self.credit = 0;
    }

    /// Handles a timeout: nothing arrives.
    pub(super) fn timed_out(&mut self) {
        self.lost();
        self.window = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_by_one_a_round_and_shrinks_by_half() {
        let mut congestion = Congestion::new();
        congestion.acknowledged(16);
        assert_eq!(congestion.window(), WINDOW, "everything until there was a loss");
        congestion.lost();
        assert_eq!(congestion.window(), 32);
        for round in 1..=10 {
            congestion.acknowledged(congestion.window());
            assert_eq!(congestion.window(), 32 + round);
        }
        congestion.timed_out();
        assert_eq!(congestion.window(), 1);
        congestion.acknowledged(12);
        assert_eq!(congestion.window(), 13, "quickly to half of what it was");
        (0..100).for_each(|_| congestion.acknowledged(WINDOW));
        assert_eq!(congestion.window(), WINDOW);
        (0..100).for_each(|_| congestion.lost());
        assert_eq!(congestion.window(), LEAST);
    }
}
