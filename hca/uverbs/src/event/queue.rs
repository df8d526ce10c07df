//! The device's event queue and the thread that serves it, like the kernel's interrupt handler.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use barewire_hca::{Device, EventChannel, UmemAccess};
use barewire_layouts::command::eq::{CreateEqIn, CreateEqOut, EQE_BYTES, Eqc};
use barewire_layouts::command::uar::{AllocUarIn, AllocUarOut};
use barewire_layouts::eqe::{Eqe, INITIAL_OWNER, OWNER, OWNER_OFFSET};
use zerocopy::FromBytes;

use super::paging;
use crate::adapter::{Adapter, command};
use crate::errno::Errno;

const LOG_ENTRIES: u8 = 13;
const ENTRIES: usize = 1 << LOG_ENTRIES;
/// Sleep between attempts to send to a full channel.
const RETRY: Duration = Duration::from_millis(2);

/// An event queue before its thread is started.
#[derive(Debug)]
pub(crate) struct Queue {
    number: u32,
    channel: Arc<EventChannel>,
    /// Lives as long as the process, because the device writes here until the end.
    ring: &'static [Entry],
}

/// An entry, aligned so that the ring begins where its memory does: valgrind reports memory to
/// which only addresses within it refer.
#[derive(Debug)]
#[repr(align(64))]
struct Entry([AtomicU8; EQE_BYTES]);

const _: () = assert!(size_of::<Entry>() == EQE_BYTES);

impl Queue {
    /// Creates a device's event queue, for every kind of event.
    pub(crate) fn new(device: &Device) -> Result<Self, Errno> {
        let entry = || Entry(std::array::from_fn(|_| AtomicU8::new(0)));
        let ring: &'static [Entry] =
            Vec::leak(std::iter::repeat_with(entry).take(ENTRIES).collect());
        for Entry(bytes) in ring {
            bytes[OWNER_OFFSET].store(INITIAL_OWNER, Ordering::Relaxed);
        }
        let start = NonNull::from(ring).cast::<u8>();
        // SAFETY: the memory is never freed, consists of atomics, and is read by atomic loads only.
        let umem =
            unsafe { device.register_umem(start, size_of_val(ring), UmemAccess::LOCAL_WRITE) }?;
        let uar =
            command::<AllocUarIn>(device, |_| {})?.view::<AllocUarIn>()?.get(AllocUarOut::UAR);
        let answer = command::<CreateEqIn>(device, |create| {
            create
                .set(CreateEqIn::EQ_UMEM_VALID, true)
                .set(CreateEqIn::EQ_UMEM_ID, umem)
                .set(CreateEqIn::EVENT_BITMASK_0, u64::MAX);
            create
                .nested(CreateEqIn::EQ_CONTEXT_ENTRY)
                .set(Eqc::LOG_EQ_SIZE, LOG_ENTRIES)
                .set(Eqc::UAR_PAGE, uar);
        })?;
        let number = answer.view::<CreateEqIn>()?.get(CreateEqOut::EQ_NUMBER);
        let channel = device.event_channel(number).ok_or(Errno::IO)?;
        Ok(Self { number, channel, ring })
    }

    /// Returns the number of the event queue.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Starts the thread that delivers events until the process ends.
    pub(crate) fn serve(self, adapter: Arc<Adapter>) -> io::Result<()> {
        thread::Builder::new()
            .name("barewire-events".to_owned())
            .spawn(move || self.run(&adapter))
            .map(drop)
    }

    fn run(&self, adapter: &Adapter) {
        let mut consumer = 0_u32;
        let mut waits = false;
        let mut faults = Vec::new();
        loop {
            // Signals are blocked, so the sleep ends early only for a harmless reason.
            let _ = self.channel.wait(waits.then_some(RETRY));
            self.channel.take();
            let mut events = adapter.events();
            while let Some(event) = self.entry(consumer) {
                match event.fault() {
                    Some(fault) => faults.push(fault),
                    None => events.deliver(&event),
                }
                consumer = consumer.wrapping_add(1);
            }
            waits = events.send_rest();
            drop(events);
            adapter.device.consume_events(self.number, consumer);
            for fault in faults.drain(..) {
                if paging::is_served(adapter, &fault) {
                    paging::serve(adapter, &fault);
                }
            }
        }
    }

    /// Returns entry `consumer`, or `None` if the device has not written it.
    fn entry(&self, consumer: u32) -> Option<Eqe> {
        let Entry(entry) = &self.ring[consumer as usize & (ENTRIES - 1)];
        let lap = (consumer >> LOG_ENTRIES) as u8 & OWNER;
        if entry[OWNER_OFFSET].load(Ordering::Acquire) & OWNER != lap {
            return None;
        }
        let mut bytes = [0; EQE_BYTES];
        for (byte, source) in bytes.iter_mut().zip(entry) {
            *byte = source.load(Ordering::Relaxed);
        }
        Eqe::read_from_bytes(&bytes).ok()
    }
}
