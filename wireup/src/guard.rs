//! Guards around every call of the user's code: a handler, a waker or a request that panics, or
//! that calls this crate again, leaves everything usable.
//!
//! While the user's code runs, nothing is borrowed. What was taken out of a cell for the call is
//! put back when the guard is dropped, also after a panic.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Sets a flag until it is dropped.
pub(crate) struct Running<'a>(&'a Cell<bool>);

impl<'a> Running<'a> {
    /// `None` if the flag is set already: a caller further up the stack runs.
    #[inline]
    pub(crate) fn start(flag: &'a Cell<bool>) -> Option<Self> {
        (!flag.replace(true)).then(|| Self(flag))
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A function of the user that runs. It is put back unless it was replaced meanwhile.
pub(crate) struct Lent<'a, T> {
    place: &'a RefCell<Option<T>>,
    value: Option<T>,
}

impl<'a, T> Lent<'a, T> {
    /// Takes the function; `None` if there is none, or if it is lent already.
    pub(crate) fn take(place: &'a RefCell<Option<T>>) -> Option<Self> {
        let value = place.borrow_mut().take()?;
        Some(Self { place, value: Some(value) })
    }

    pub(crate) fn get(&mut self) -> Option<&mut T> {
        self.value.as_mut()
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let value = self.value.take();
        let mut place = self.place.borrow_mut();
        if place.is_none() {
            *place = value;
        }
    }
}

/// The elements that a queue has now, one after the other. Those that are added meanwhile, and
/// after a panic those that are left, stay in the queue.
pub(crate) struct Present<'a, T> {
    queue: &'a RefCell<VecDeque<T>>,
    left: usize,
}

impl<'a, T> Present<'a, T> {
    pub(crate) fn of(queue: &'a RefCell<VecDeque<T>>) -> Self {
        Self { queue, left: queue.borrow().len() }
    }
}

impl<'a, T> Iterator for Present<'a, T> {
    type Item = Held<'a, T>;

    fn next(&mut self) -> Option<Held<'a, T>> {
        self.left = self.left.checked_sub(1)?;
        let element = self.queue.borrow_mut().pop_front()?;
        Some(Held { queue: self.queue, element: Some(element) })
    }
}

/// An element of a queue. It is queued again, as the last, unless it was [taken](Self::take).
pub(crate) struct Held<'a, T> {
    queue: &'a RefCell<VecDeque<T>>,
    element: Option<T>,
}

impl<T> Held<'_, T> {
    /// The element; `None` never.
    pub(crate) fn get(&self) -> Option<&T> {
        self.element.as_ref()
    }

    pub(crate) fn take(mut self) -> Option<T> {
        self.element.take()
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if let Some(element) = self.element.take() {
            self.queue.borrow_mut().push_back(element);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn panic_of_the_user() {
        std::panic::resume_unwind(Box::new("of the user"));
    }

    /// `run` ends with the panic of the user, and no other.
    fn panics(run: impl FnOnce()) {
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the user"));
    }

    #[test]
    fn a_flag_is_cleared_after_a_panic() {
        let flag = Cell::new(false);
        panics(|| {
            let _running = Running::start(&flag).expect("nothing runs");
            assert!(Running::start(&flag).is_none() && flag.get());
            panic_of_the_user();
        });
        assert!(!flag.get());
    }

    #[test]
    fn a_function_that_panics_is_put_back_unless_it_was_replaced() {
        let place = RefCell::new(Some(1));
        let run = |replacement: Option<i32>| {
            panics(|| {
                let mut lent = Lent::take(&place).expect("present");
                assert!(Lent::take(&place).is_none() && lent.get().is_some());
                if replacement.is_some() {
                    *place.borrow_mut() = replacement;
                }
                panic_of_the_user();
            });
        };
        run(None);
        assert_eq!(*place.borrow(), Some(1));
        run(Some(2));
        assert_eq!(*place.borrow(), Some(2));
    }

    #[test]
    fn elements_that_are_added_or_left_over_stay() {
        let queue = RefCell::new(VecDeque::from([1, 2, 3, 4]));
        panics(|| {
            for held in Present::of(&queue) {
                let element = held.get().copied();
                queue.borrow_mut().push_back(10 * element.unwrap_or_default());
                match element {
                    Some(1) => drop(held.take()),
                    Some(3) => panic_of_the_user(),
                    _ => {}
                }
            }
        });
        assert_eq!(*queue.borrow(), [4, 10, 20, 2, 30, 3]);
        assert_eq!(Present::of(&queue).filter_map(Held::take).count(), 6);
        assert!(queue.borrow().is_empty());
    }
}
