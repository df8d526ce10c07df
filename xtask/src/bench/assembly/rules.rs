//! What hot functions may do as an exception, with the reasons.

use std::collections::BTreeMap;

use super::reach::{Deed, Finding};

/// A function that hot functions may call and that is not checked.
struct Slow {
    /// Part of the names of the hot functions.
    callers: &'static str,
    /// End of the path of the slow function.
    function: &'static str,
}

const fn slow(callers: &'static str, function: &'static str) -> Slow {
    Slow { callers, function }
}

const SLOW: &[Slow] = &[
    // An operation beyond the bounds of its queue, which the room counter excludes, is dropped.
    slow("held_", "transport::common::operation::lose"),
    // An endpoint fails once.
    slow("progress", "::fail_send"),
    slow("progress", "::fail_receive"),
    // The first completion of a queue pair whose user index libmlx5 assigned.
    slow("progress", "::learn"),
    // Pending requests, and closing endpoints.
    slow("progress", "::settle"),
    // Errors, and messages that end the access to a window.
    slow("progress", "::take_other"),
    // Completions of a queue with tag matching, by a user index that no endpoint has.
    slow("progress", "::take_tagged"),
    // A shared receive queue of which half waits gets more buffers, a few times in its life.
    slow("progress", "SharedReceiver::grow"),
    // So do datagrams of many endpoints.
    slow("progress", "ud::interface::Shared<D>::grow"),
    // The window of an endpoint over datagrams becomes larger than ever before.
    slow("held_", "reliable::sender::Sender<S>::grow"),
    // The user's callback, and its repetition after a panic.
    slow("progress", "completion::Completion::run"),
    slow("progress", "completion::Running::run_after_panic"),
    // The last handle of an object that the user shared with the operation and dropped meanwhile.
    slow("progress", "alloc::rc::Rc<T,A>::drop_slow"),
];

/// A deed that is part of an operation.
struct Exception {
    callers: &'static str,
    deed: Deed,
    /// The end of the call path to it.
    way: &'static str,
}

const fn except(callers: &'static str, deed: Deed, way: &'static str) -> Exception {
    Exception { callers, deed, way }
}

const EXCEPTIONS: &[Exception] = &[
    // The user's handlers, and the user's function that unpacks data.
    except("progress", Deed::Indirect, ""),
    // A handler that replaced itself while it ran, and the last handle of a shared object.
    except("progress", Deed::Allocate, "> __rustc::__rust_dealloc"),
];

/// Returns the functions that the check of `hot` does not enter.
pub(super) fn slow_functions(hot: &str) -> Vec<&'static str> {
    SLOW.iter().filter(|slow| hot.contains(slow.callers)).map(|slow| slow.function).collect()
}

/// Returns the complaints about `hot`, with the shortest call path of each deed.
pub(super) fn complaints(hot: &str, findings: &[Finding]) -> Vec<String> {
    let mut worst: BTreeMap<Deed, (usize, String)> = BTreeMap::new();
    for Finding { deed, way } in findings {
        let way = way.join(" > ");
        let is_excepted = |exception: &Exception| {
            hot.contains(exception.callers)
                && exception.deed == *deed
                && way.ends_with(exception.way)
        };
        if EXCEPTIONS.iter().any(is_excepted) {
            continue;
        }
        let (ways, shortest) = worst.entry(*deed).or_insert_with(|| (0, way.clone()));
        *ways += 1;
        if way.len() < shortest.len() {
            *shortest = way;
        }
    }
    let complaint = |(deed, (ways, way)): (Deed, (usize, String))| {
        let more =
            if ways > 1 { format!(" (and in {} other ways)", ways - 1) } else { String::new() };
        format!("{hot} {}: {way}{more}", deed.words())
    };
    worst.into_iter().map(complaint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complains_of_the_shortest_way() {
        let finding = |deed, way: &[&str]| Finding {
            deed,
            way: way.iter().map(ToString::to_string).collect(),
        };
        let findings = [
            finding(Deed::Panic, &["held_put", "a", "core::panicking::panic"]),
            finding(Deed::Panic, &["held_put", "core::panicking::panic"]),
            finding(Deed::Indirect, &["held_put"]),
        ];
        let wanted = [
            "held_put may panic: held_put > core::panicking::panic (and in 1 other ways)",
            "held_put calls through a pointer: held_put",
        ];
        assert_eq!(complaints("held_put", &findings), wanted);
        assert_eq!(complaints("held_progress", &findings[2..]), [""; 0], "handlers");
    }
}
