//! ALLOC_Q_COUNTER, DEALLOC_Q_COUNTER, QUERY_Q_COUNTER.

use barewire_layouts::command::q_counter::{
    AllocQCounterOut, DeallocQCounterIn, QueryQCounterIn, QueryQCounterOut,
};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::Objects;
use crate::object::CounterSet;

/// Returns counter set `number` of a queue pair or target; 0 for none.
pub(super) fn counter_set(objects: &Objects, number: u8) -> Result<u8, CommandSyndrome> {
    if number == 0 || objects.counter_sets.get(number.into()).is_some() {
        Ok(number)
    } else {
        Err(CommandSyndrome::UnknownCounterSet)
    }
}

/// PRM: ALLOC_Q_COUNTER.
pub(super) fn alloc(objects: &mut Objects, mut output: ViewMut<'_, AllocQCounterOut>) -> Outcome {
    let set = objects.counter_sets.insert_with(|_| CounterSet::default());
    let (set, _) = set.ok_or(CommandSyndrome::NoCounterSets)?;
    // Eight bits: the table allocates no more.
    output.set(AllocQCounterOut::COUNTER_SET_ID, set as u8);
    Ok(())
}

/// PRM: DEALLOC_Q_COUNTER. Queue pairs that name it are not counted any more.
pub(super) fn dealloc(objects: &mut Objects, input: View<'_, DeallocQCounterIn>) -> Outcome {
    let set = input.get(DeallocQCounterIn::COUNTER_SET_ID);
    objects.counter_sets.remove(set.into()).map(|_| ()).ok_or(CommandSyndrome::UnknownCounterSet)
}

/// PRM: QUERY_Q_COUNTER. Counts wrap at 32 bits.
pub(super) fn query(
    objects: &mut Objects,
    input: View<'_, QueryQCounterIn>,
    mut output: ViewMut<'_, QueryQCounterOut>,
) -> Outcome {
    let number = input.get(QueryQCounterIn::COUNTER_SET_ID);
    let set =
        objects.counter_sets.get_mut(number.into()).ok_or(CommandSyndrome::UnknownCounterSet)?;
    for (field, count) in set.counts() {
        output.set(field, count as u32);
    }
    if input.get(QueryQCounterIn::CLEAR) {
        *set = CounterSet::default();
    }
    Ok(())
}
