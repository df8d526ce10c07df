//! Creation of queue pairs of every transport service, and what they have in common.

use core::any::Any;
use std::sync::Arc;

use barewire_layouts::command::qp::{Enhancements, ServiceType};
use barewire_layouts::wqe::{DataSegment, WQEBB};

#[cfg(feature = "verbs")]
use crate::backend::init_obj;
use crate::backend::{Backend, InitiatorSettings, Pair, PairInfo, PairSizes, Receive, commands};
#[cfg(feature = "verbs")]
use crate::context::DomainObject;
use crate::context::{Context, ProtectionDomain, Registers, Uar};
use crate::cq::Reservation;
use crate::doorbell::{Doorbell, Half, Width};
use crate::error::Error;
use crate::queue::completion::CompletionQueue;
use crate::queue::receive::{ReceiveParts, ReceiveQueue};
use crate::queue::send::{MAX_WQE_BLOCKS, SendParts, SendQueue, UNMODERATED};
use crate::values::check_user_index;

/// The resources of a queue pair, dropped in this order.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) object: Box<dyn Pair>,
    _completion_entries: [Reservation; 2],
    _shared_receive: Option<Arc<dyn Any + Send + Sync>>,
    _registers: Registers,
    domain: ProtectionDomain,
}

impl Resources {
    pub(crate) fn context(&self) -> &Context {
        self.domain.context()
    }
}

/// A queue pair that is asked for. The sizes are as in [`RcConfig`](crate::RcConfig).
pub(crate) struct Wanted<'a> {
    pub(crate) service: ServiceType,
    pub(crate) send_blocks: u32,
    pub(crate) receive: Receive<'a>,
    pub(crate) signal_period: u32,
    /// No completions except those that posts request: `signal_period` is ignored.
    pub(crate) unmoderated: bool,
    pub(crate) user_index: u32,
    /// Short messages arrive in the completion.
    pub(crate) inline_receive: bool,
    /// The completion queues may have fewer entries than WQEs.
    pub(crate) overcommit: bool,
    pub(crate) initiator: InitiatorSettings,
}

/// A queue pair in the reset state.
pub(crate) struct Created<D: Doorbell> {
    pub(crate) send: SendQueue<D>,
    /// Its own receive ring, if it has one.
    pub(crate) receive: Option<ReceiveQueue>,
    pub(crate) number: u32,
    /// `None` if the caller does not choose it.
    pub(crate) user_index: Option<u32>,
    /// Those that the device supports.
    pub(crate) enhancements: Enhancements,
    pub(crate) resources: Arc<Resources>,
}

impl<D: Doorbell> Created<D> {
    /// The receive queue of a queue pair that was created with [`Receive::Own`].
    ///
    /// # Errors
    /// If it was not.
    pub(crate) fn receive(&mut self) -> Result<ReceiveQueue, Error> {
        let lacks =
            || Error::parameter("receive WQEs", 0u32, "a queue pair with a ring of its own");
        self.receive.take().ok_or_else(lacks)
    }

    /// Creates a queue pair. The completion queues must have room for its WQEs: see
    /// [`CompletionQueue`].
    ///
    /// # Errors
    /// If a size exceeds the limit of the device, a completion queue belongs to another device, or
    /// the device refused.
    pub(crate) fn new(
        domain: &ProtectionDomain,
        uar: &Uar,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        wanted: &Wanted<'_>,
    ) -> Result<Self, Error> {
        let context = domain.context();
        let combines = context.capabilities().blueflame && context.capabilities().write_combining;
        if D::WHOLE_WQE && !D::ADAPTS && !combines {
            return Err(Error::Unsupported {
                what: "BlueFlame",
                reason: "its UAR pages are not mapped write-combining; PlainDoorbell works",
            });
        }
        if !D::Width::is_available() {
            return Err(Error::parameter(
                "bytes of a store to the register",
                D::Width::BYTES,
                "a width that this CPU supports",
            ));
        }
        let most = context.capabilities().max_queue_entries;
        let size = |what, value: u32, least: u32| {
            if value == 0 || value > most {
                return Err(Error::parameter(what, value, format!("1 to {most}")));
            }
            Ok(value.next_power_of_two().max(least))
        };
        let send_blocks = size("send WQEBBs", wanted.send_blocks, 4 * MAX_WQE_BLOCKS)?;
        // The send ring follows the receive ring and starts at a WQEBB.
        let least = (WQEBB / size_of::<DataSegment>()) as u32;
        let receive = match wanted.receive {
            Receive::Own(entries) => Receive::Own(size("receive WQEs", entries, least)?),
            Receive::Shared(queue) => {
                context.owns(queue.domain.context())?;
                if queue.striding && wanted.inline_receive {
                    let free = "off: a completion with inline data does not name its stride";
                    return Err(Error::parameter("inline receive", 1_u32, free));
                }
                wanted.receive
            }
            Receive::Xrc(_) | Receive::None => wanted.receive,
        };
        check_user_index(wanted.user_index)?;
        let signal_period = if wanted.unmoderated {
            UNMODERATED
        } else {
            1 << wanted.signal_period.clamp(1, send_blocks / 8).ilog2()
        };
        let queues = [send_completions.resources()?, receive_completions.resources()?];
        for other in [uar.context(), &queues[0].context, &queues[1].context] {
            context.owns(other)?;
        }
        // On an error every WQE generates a CQE.
        let received = if let Receive::Own(entries) = receive { entries } else { 0 };
        // Of one queue for both, the sum: an error names what is needed in all.
        let (sent, received) = if Arc::ptr_eq(&queues[0], &queues[1]) {
            (send_blocks + received, 0)
        } else {
            (send_blocks, received)
        };
        let reservations = [
            queues[0].reserve(sent, wanted.overcommit)?,
            queues[1].reserve(received, wanted.overcommit)?,
        ];
        let user_index = wanted.user_index;
        let service = wanted.service;
        let inline_receive = wanted.inline_receive;
        let sizes = PairSizes {
            send_blocks,
            receive,
            user_index,
            timestamps: context.capabilities().timestamps(),
            service,
            inline_receive,
            enhancements: context.capabilities().enhancements,
            initiator: wanted.initiator,
        };
        let registers = if D::LOCKED { uar.shared()? } else { uar.own() };
        let facts = match (context.backend(), domain.object(), registers) {
            (Backend::Commands(channel), domain, Registers::Page(page)) => {
                let cqns = queues.each_ref().map(|queue| queue.number);
                commands::create_pair(
                    &**channel,
                    (context.queue_memory(), context.object_events()),
                    domain.number(),
                    Some(&**page),
                    cqns,
                    &sizes,
                )?
            }
            #[cfg(feature = "verbs")]
            (
                Backend::InitObj(_),
                DomainObject::Verbs { domain, .. },
                Registers::ThreadDomain(thread),
            ) => init_obj::create_pair(
                domain,
                thread.as_ref(),
                queues.each_ref().map(|queue| &*queue.object),
                &sizes,
            )?,
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        let PairInfo {
            number,
            user_index,
            enhancements,
            send_ring,
            receive_ring,
            doorbell_record,
            register,
            object,
        } = facts;
        let resources = Arc::new(Resources {
            object,
            _completion_entries: reservations,
            _shared_receive: match receive {
                Receive::Shared(queue) => Some(Arc::clone(queue) as _),
                Receive::Xrc(queue) => Some(Arc::clone(queue) as _),
                Receive::Own(_) | Receive::None => None,
            },
            _registers: registers.clone(),
            domain: domain.clone(),
        });
        // SAFETY: ring, record word and register lie in memory that `keep` holds. Nothing else has
        // the address of ring and record; the register is shared with queues of the same thread
        // (`Uar`) or, under its lock, of several. `D::Width::is_available` was checked.
        let send = unsafe {
            let parts = SendParts {
                ring: send_ring,
                blocks: send_blocks,
                doorbell_record: doorbell_record.add(1),
                register,
                qpn: number,
                signal_period,
                keep: resources.clone(),
            };
            let half = match D::LOCKED {
                true => Half::new(register),
                false if D::ADAPTS && !combines => Half::plain(register),
                false => uar.half(register),
            };
            SendQueue::build(parts, half, D::LOCKED.then(|| uar.lock(register)))
        };
        let entries = receive.entries();
        // SAFETY: ring and record word lie in memory that `keep` holds, and nothing else has their
        // address.
        let receive = (entries > 0).then(|| unsafe {
            ReceiveQueue::from_parts(ReceiveParts {
                ring: receive_ring,
                entries,
                doorbell_record,
                keep: resources.clone(),
            })
        });
        Ok(Self { send, receive, number, user_index, enhancements, resources })
    }
}
