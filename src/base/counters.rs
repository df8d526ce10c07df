//! Counters of endpoints. They cost two additions per post.

use std::cell::Cell;
use std::fmt;
use std::hint::cold_path;
use std::ops::{Add, AddAssign, Sub};
use std::rc::Rc;

/// Counts of an endpoint, or of all endpoints that an interface has had, since it was opened. They
/// wrap around.
///
/// ```
/// # use barewire::*;
/// let mut worker = Worker::new();
/// let domain = Domain::open(&"self/memory".parse()?)?;
/// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
/// let endpoint = interface.connect(&interface.address())?;
/// let before = endpoint.counters();
/// endpoint.am_short(0, 1, b"four")?;
/// let did = endpoint.counters() - before;
/// assert_eq!((did.posted, did.bytes), (1, 12));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Accepted operations: messages, puts, gets and atomics; each transfer of a list.
    pub posted: u64,
    /// Bytes of these: payloads, headers of messages, the words of atomics.
    pub bytes: u64,
    /// Posts that returned [`PostError::NoResource`](crate::PostError::NoResource) for lack of
    /// room. Posts that returned it because requests were pending, or because the peer had not
    /// responded, are excluded.
    pub no_resource: u64,
    /// Requests that [`Endpoint::pending_add`](crate::Endpoint::pending_add) accepted.
    pub waited: u64,
    /// Messages that the transport sent again, which only `ud_mlx5` and `ud_verbs` do. Devices and
    /// the kernel count their own retransmissions
    /// (`/sys/class/infiniband/*/ports/*/hw_counters`, `nstat`).
    pub retries: u64,
}

impl Counters {
    /// Returns the counters with their names.
    pub const fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("posted", self.posted),
            ("bytes", self.bytes),
            ("no_resource", self.no_resource),
            ("waited", self.waited),
            ("retries", self.retries),
        ]
    }

    /// Passes the counters, with these labels, to the recorder of the crate [`metrics`]: sets its
    /// counters `barewire_posted`, `barewire_bytes` and so on (feature `metrics`). Call it whenever
    /// they should be updated; posts are not affected.
    ///
    /// ```
    /// # use barewire::*;
    /// # let mut worker = Worker::new();
    /// # let domain = Domain::open(&"self/memory".parse()?)?;
    /// # let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// interface.counters().publish(&[("transport", interface.transport().name()), ("device", "memory")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn publish(&self, labels: &[(&'static str, &str)]) {
        let labels: Vec<_> = labels
            .iter()
            .map(|&(name, value)| metrics::Label::new(name, value.to_owned()))
            .collect();
        let Self { posted, bytes, no_resource, waited, retries } = *self;
        metrics::counter!("barewire_posted", labels.clone()).absolute(posted);
        metrics::counter!("barewire_bytes", labels.clone()).absolute(bytes);
        metrics::counter!("barewire_no_resource", labels.clone()).absolute(no_resource);
        metrics::counter!("barewire_waited", labels.clone()).absolute(waited);
        metrics::counter!("barewire_retries", labels).absolute(retries);
    }

    fn combine(self, other: Self, one: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            posted: one(self.posted, other.posted),
            bytes: one(self.bytes, other.bytes),
            no_resource: one(self.no_resource, other.no_resource),
            waited: one(self.waited, other.waited),
            retries: one(self.retries, other.retries),
        }
    }
}

impl Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.combine(other, u64::wrapping_add)
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// The counts since `other` was read.
impl Sub for Counters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        self.combine(before, u64::wrapping_sub)
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, number)) in self.named().into_iter().enumerate() {
            write!(f, "{}{name} {number}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// The live counters of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    posted: Cell<u64>,
    bytes: Cell<u64>,
    no_resource: Cell<u64>,
    waited: Cell<u64>,
    retries: Cell<u64>,
    past: Past,
}

/// Counts of an interface's endpoints that were dropped.
pub(crate) type Past = Rc<Cell<Counters>>;

impl Tally {
    pub(crate) fn new(past: &Past) -> Self {
        let mut tally = Self::default();
        tally.past = Rc::clone(past);
        tally
    }

    /// Counts an accepted operation.
    #[inline(always)]
    pub(crate) fn posted(&self, bytes: usize) {
        self.posted_many(1, bytes);
    }

    #[inline(always)]
    pub(crate) fn posted_many(&self, operations: usize, bytes: usize) {
        self.posted.set(self.posted.get().wrapping_add(operations as u64));
        self.add_bytes(bytes);
    }

    /// Counts bytes, for transports that count operations elsewhere.
    #[inline(always)]
    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().wrapping_add(bytes as u64));
    }

    /// Sets the total number of posted operations.
    pub(crate) fn set_posted(&self, operations: u64) {
        self.posted.set(operations);
    }

    /// Inlined: a call here would make every post save registers.
    #[inline(always)]
    pub(crate) fn refused(&self) {
        cold_path();
        self.no_resource.set(self.no_resource.get().wrapping_add(1));
    }

    pub(crate) fn waited(&self) {
        self.waited.set(self.waited.get() + 1);
    }

    #[cfg(any(test, feature = "mlx5", feature = "verbs"))]
    pub(crate) fn retried(&self) {
        self.retries.set(self.retries.get() + 1);
    }

    pub(crate) fn read(&self) -> Counters {
        Counters {
            posted: self.posted.get(),
            bytes: self.bytes.get(),
            no_resource: self.no_resource.get(),
            waited: self.waited.get(),
            retries: self.retries.get(),
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.past.set(self.past.get() + self.read());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_stays_counted() {
        let past = Past::default();
        let (one, other) = (Tally::new(&past), Tally::new(&past));
        one.posted(8);
        one.posted_many(3, 30);
        one.refused();
        other.posted(2);
        other.waited();
        other.retried();
        let read = one.read();
        assert_eq!((read.posted, read.bytes, read.no_resource), (4, 38, 1));
        assert_eq!(past.get(), Counters::default());
        drop(one);
        assert_eq!(past.get(), read);
        drop(other);
        let all = past.get();
        assert_eq!(all.to_string(), "posted 5, bytes 40, no_resource 1, waited 1, retries 1");
        assert_eq!((all - read).named().map(|(_, number)| number), [1, 2, 0, 1, 1]);
    }

    #[cfg(feature = "metrics")]
    #[test]
    fn a_recorder_of_metrics_gets_them() {
        use std::sync::{Arc, Mutex};

        use metrics::{
            Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
            Unit,
        };

        #[derive(Default)]
        struct Seen(Arc<Mutex<Vec<(String, u64)>>>);

        struct One(Key, Arc<Mutex<Vec<(String, u64)>>>);

        impl CounterFn for One {
            fn increment(&self, _value: u64) {}

            fn absolute(&self, value: u64) {
                self.1.lock().unwrap().push((self.0.to_string(), value));
            }
        }

        impl Recorder for Seen {
            fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

            fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
                Counter::from_arc(Arc::new(One(key.clone(), Arc::clone(&self.0))))
            }

            fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
                Gauge::noop()
            }

            fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
                Histogram::noop()
            }
        }

        let recorder = Seen::default();
        let counters = Counters { posted: 1, bytes: 2, no_resource: 3, waited: 4, retries: 5 };
        metrics::with_local_recorder(&recorder, || counters.publish(&[("transport", "shm")]));
        let seen = recorder.0.lock().unwrap();
        for (name, number) in counters.named() {
            let found = seen.iter().find(|(key, _)| key.contains(&format!("barewire_{name},")));
            assert!(
                found.is_some_and(|(key, value)| key.contains("shm") && *value == number),
                "{name}: {seen:?}"
            );
        }
    }

    #[test]
    fn numbers_wrap_around() {
        let tally = Tally::default();
        tally.bytes.set(u64::MAX);
        let before = tally.read();
        tally.posted(3);
        assert_eq!((tally.read() - before).bytes, 3);
    }
}
