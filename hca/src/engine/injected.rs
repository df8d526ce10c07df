//! Injected faults of the device: slow memory, and completion queue overrun.

use barewire_layouts::command::cq::CqStatus;
use barewire_layouts::command::qp::QpState;

use super::{Context, Engine, completer, events, split};

impl Engine {
    /// Makes memory slow: each packet takes `nanoseconds`.
    pub(crate) fn set_slow_dma(&mut self, nanoseconds: u64) {
        self.slow_dma = nanoseconds;
    }

    /// Returns whether the last packet's bytes have been written.
    pub(super) fn memory_is_free(&self, now: u64) -> bool {
        self.memory_busy.is_none_or(|until| until <= now)
    }

    /// Returns 1 if memory is slow, otherwise `budget`.
    pub(super) fn budget(&self, budget: u32) -> u32 {
        if self.slow_dma > 0 { 1 } else { budget }
    }

    /// Overruns completion queue `cqn`, as if its consumer had been too slow: it takes no more
    /// entries, and queue pairs that complete to it fail. Returns `false` if there is no such
    /// queue, or it is overrun already.
    pub(crate) fn overrun(&mut self, context: &mut Context<'_>, cqn: u32) -> bool {
        let Some(cq) = context.objects.cqs.get_mut(cqn).filter(|cq| cq.status == CqStatus::Ok)
        else {
            return false;
        };
        cq.status = CqStatus::Overflow;
        context.counters.cq_overruns += 1;
        let contexts =
            context.objects.contexts.iter().map(|(number, context)| (number, &context.qp));
        let users = context.objects.qps.iter().chain(contexts);
        let users = users.filter(|(_, qp)| qp.send_cq == cqn || qp.receive_cq == cqn);
        let users: Vec<u32> = users.map(|(qpn, _)| qpn).collect();
        events::overrun(&mut context.objects.events, cqn);
        for qpn in users {
            if let Some((qp, mut port)) = split(context, &mut self.built, qpn)
                && qp.state != QpState::Rst
            {
                completer::fail(qp, &mut port);
            }
            self.note_failure(context, qpn);
        }
        true
    }
}
