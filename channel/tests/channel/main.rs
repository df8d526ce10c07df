//! Channels between two ends of this process: every behaviour over every set of rails, and how two
//! ends connect.

mod behaviours;
#[path = "../../../wireup/tests/hosts/bench.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod bench;
mod control;
mod driver;
mod enhancements;
mod fail_over;
#[path = "../../../tests/support/flood.rs"]
mod flood;
mod floods;
mod handshake;
mod hosts;
mod pair;
mod processes;
#[path = "../suite/mod.rs"]
mod suite;
mod unequal;

/// Runs each behaviour over one rail, two, three and eight, over two on a bad wire, over three that
/// carry different amounts, over one with another on standby, and with a record for each message,
/// as for networks that route adaptively.
macro_rules! over_every_set {
    ($($behaviour:ident)+) => {
        over_every_set! { @set one good(1) $($behaviour)+ }
        over_every_set! { @set two good(2) $($behaviour)+ }
        over_every_set! { @set three good(3) $($behaviour)+ }
        over_every_set! { @set eight good(8) $($behaviour)+ }
        over_every_set! { @set lossy lossy(2) $($behaviour)+ }
        over_every_set! { @set weighted weighted(3) $($behaviour)+ }
        over_every_set! { @set standby standby(2) $($behaviour)+ }
        over_every_set! { @set adaptive adaptive(2) $($behaviour)+ }
    };
    (@set $set:ident $make:ident($rails:literal) $($behaviour:ident)+) => {
        mod $set {
            crate::suite! {{
                Some(crate::driver::Driver::new(crate::pair::Set::$make($rails), 4096))
            }}
            $(#[test]
            fn $behaviour() {
                crate::behaviours::$behaviour(crate::pair::Set::$make($rails));
            })+
        }
    };
}

over_every_set! {
    lengths_beyond_the_limit_are_refused
    refusals_make_room
    unknown_requests_are_refused
    wrong_regions_are_refused_without_effect
    regions_outlive_their_last_handle
    queue_pairs_take_turns
    counters_of_the_rails_add_up
    numbers_and_rings_wrap
    ends_move_to_other_threads
    a_closed_end_is_noticed_by_the_other
}

/// Every message is cut, however short.
mod cut {
    crate::suite! { Some(crate::driver::Driver::new(crate::pair::Set::good(3), 0)) }
}
