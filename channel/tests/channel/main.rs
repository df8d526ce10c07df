//! Channels between two ends of this process: every behaviour over every set of rails, and how two
//! ends connect.

mod behaviours;
mod fail_over;
mod handshake;
mod pair;
mod processes;

/// Runs each behaviour over one rail, two, three and eight, and over two on a bad wire.
macro_rules! over_every_set {
    ($($behaviour:ident)+) => {
        over_every_set! { @set one good(1) $($behaviour)+ }
        over_every_set! { @set two good(2) $($behaviour)+ }
        over_every_set! { @set three good(3) $($behaviour)+ }
        over_every_set! { @set eight good(8) $($behaviour)+ }
        over_every_set! { @set lossy lossy(2) $($behaviour)+ }
    };
    (@set $set:ident $make:ident($rails:literal) $($behaviour:ident)+) => {
        mod $set {
            $(#[test]
            fn $behaviour() {
                crate::behaviours::$behaviour(crate::pair::Set::$make($rails));
            })+
        }
    };
}

over_every_set! {
    messages_of_every_length_arrive
    lengths_beyond_the_limit_are_refused
    announcements_wait_when_32_are_outstanding
    sends_wait_for_their_buffer
    groups_match_by_tag
    equal_tags_match_in_order
    groups_and_single_buffers_alternate
    a_send_longer_than_its_buffer_fails_at_both_ends
    requests_are_tested_once_and_in_any_order
    wrong_arguments_are_refused_without_effect
    regions_outlive_their_last_handle
    queue_pairs_take_turns
    numbers_and_rings_wrap
    ends_move_to_other_threads
    a_closed_end_is_noticed_by_the_other
}
