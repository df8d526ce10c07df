//! Attribution of counts to the counter set of a queue pair or target.

use super::{Context, Objects};
use crate::counters::Counters;

/// Attribution of counts during work on a queue pair, a DC target or one of its responder contexts.
#[derive(Debug)]
pub(super) struct Tally {
    /// The counter set that it names; 0 for none.
    set: u8,
    before: Counters,
}

impl Tally {
    /// Starts work on `number`, which may not exist any more when the work ends.
    pub(super) fn begin(context: &Context<'_>, number: u32) -> Self {
        let Objects { dcts, .. } = &*context.objects;
        let attributes = context.objects.queue_pair(number).map(|qp| &qp.attributes);
        let attributes = attributes.or_else(|| dcts.get(number).map(|dct| &dct.attributes));
        Self {
            set: attributes.map_or(0, |attributes| attributes.counter_set),
            before: *context.counters,
        }
    }

    /// Adds the counts since `begin` to the counter set.
    pub(super) fn end(self, context: &mut Context<'_>) {
        let set = context.objects.counter_sets.get_mut(self.set.into());
        if let Some(set) = set.filter(|_| self.before != *context.counters) {
            set.charge(&self.before, context.counters);
        }
    }
}
