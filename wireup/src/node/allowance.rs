//! Bounds the processor time that members of the job can take from a node without a link to it: by
//! control connections, and by what the node sends to nodes that it does not know.

use std::time::Duration;

use barewire_tcp::share::Terms;

/// What may be spent.
pub(super) const TERMS: Terms = Terms {
    burst: Duration::from_millis(100),
    least: Duration::from_micros(200),
    ..Terms::CONNECTIONS
};
/// Time that a message without effect costs; a link that a peer makes counts as several.
const MESSAGE: Duration = Duration::from_micros(32);

/// Returns the time that messages cost beyond that of receiving them: what follows from them is
/// done later.
pub(super) fn cost(messages: u64) -> Duration {
    MESSAGE.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX))
}
