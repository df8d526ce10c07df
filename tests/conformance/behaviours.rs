//! The list of behaviours.

use barewire::Flags;

use crate::place::Place;
use crate::{
    atomics, callbacks, check, closing, counters, device_memory, events, fences, fork, full_queues,
    keepalive, kept, limits, lists, memory, messages, ordering, panics, peers, pending, processes,
    reentrancy, registration, rma, setup, sleeping, tags, views, volume, windows,
};

/// A behaviour that all transports have in common.
pub(crate) struct Behaviour {
    /// The module with the function.
    pub(crate) module: &'static str,
    pub(crate) name: &'static str,
    /// The capabilities that the behaviour requires.
    pub(crate) needs: Flags,
    pub(crate) kind: Kind,
    pub(crate) run: fn(&Place),
}

/// How a behaviour is run, and where it suffices to run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In a process with others.
    Plain,
    /// The same; it shows an operation, and runs on devices that are set up in other ways, too.
    Operation,
    /// It forks, sets limits of the process, or leaves it as a panic did.
    Alone,
    /// It waits for a time-out.
    Waiting,
}

impl Kind {
    /// The name in `BAREWIRE_TEST_KINDS`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Operation => "operation",
            Self::Alone => "alone",
            Self::Waiting => "waiting",
        }
    }
}

macro_rules! behaviours {
    (@kind) => { Kind::Plain };
    (@kind $kind:ident) => { Kind::$kind };
    ($($module:ident :: $name:ident [$($need:ident)*] $($kind:ident)?;)+) => {
        pub(crate) const BEHAVIOURS: &[Behaviour] = &[$(Behaviour {
            module: stringify!($module),
            name: stringify!($name),
            needs: Flags::empty()$(.union(Flags::$need))*,
            kind: behaviours!(@kind $($kind)?),
            run: $module::$name,
        }),+];
    };
}

behaviours! {
    setup::an_endpoint_that_was_never_connected [CONNECT_TO_EP] Operation;
    memory::memory_checks_its_bounds [];
    memory::foreign_memory_is_registered [PUT_ZCOPY];
    registration::peers_use_the_address_of_a_registration [PUT_ZCOPY GET_ZCOPY PUT_BCOPY] Operation;
    registration::atomics_use_the_address_of_a_registration [ATOMIC_CPU];
    registration::messages_leave_memory_at_another_address [AM_ZCOPY];
    registration::pages_are_brought_in [];
    registration::one_key_names_all_memory [PUT_ZCOPY GET_ZCOPY];
    registration::slices_in_strides [PUT_ZCOPY GET_ZCOPY];
    device_memory::memory_on_the_device_is_used_like_any [DEVICE_MEMORY PUT_ZCOPY GET_ZCOPY] Operation;
    device_memory::memory_on_the_device_has_atomics_and_messages [DEVICE_MEMORY ATOMIC_DEVICE AM_ZCOPY];
    device_memory::memory_on_the_device_is_limited [DEVICE_MEMORY];
    device_memory::who_has_no_memory_on_the_device_names_others [];
    device_memory::what_is_no_dma_buf_is_refused [];
    windows::a_window_opens_its_range_until_it_is_invalidated [WINDOWS PUT_ZCOPY] Operation;
    windows::a_window_gives_no_more_than_it_says [WINDOWS PUT_ZCOPY ERRHANDLE_REMOTE_MEM];
    windows::a_window_that_cannot_be_bound [WINDOWS];
    windows::who_has_no_windows_names_others [];
    windows::a_window_is_free_once_its_endpoint_has_ended [WINDOWS PUT_ZCOPY];
    windows::another_endpoint_invalidates_no_window_of_a_peer [WINDOWS PUT_ZCOPY];
    windows::windows_are_used_beside_tag_matching [WINDOWS PUT_ZCOPY TAG_EAGER_SHORT];
    windows::a_message_ends_the_access_by_its_key [SEND_INVALIDATE PUT_ZCOPY];
    windows::a_message_ends_no_access_to_a_region [SEND_INVALIDATE PUT_ZCOPY];
    views::joined_ranges_are_used_like_memory [VIEWS PUT_ZCOPY PUT_BCOPY] Operation;
    views::columns_are_used_like_memory [VIEWS GET_ZCOPY];
    views::a_view_gives_no_more_than_it_says [VIEWS PUT_ZCOPY ERRHANDLE_REMOTE_MEM];
    views::transfers_between_views_equal_a_model [VIEWS PUT_ZCOPY GET_ZCOPY PUT_BCOPY GET_BCOPY];
    views::messages_are_gathered_from_views [VIEWS AM_ZCOPY];
    views::words_of_views_are_changed_atomically [VIEWS ATOMIC_CPU];
    views::a_message_ends_no_access_to_a_view [VIEWS SEND_INVALIDATE PUT_ZCOPY];
    tags::eager_messages_go_to_the_receives_that_they_match [TAG_EAGER_SHORT TAG_EAGER_BCOPY TAG_EAGER_ZCOPY] Operation;
    tags::the_receive_that_was_posted_first_gets_the_message [TAG_EAGER_SHORT];
    tags::messages_without_a_receive_come_to_the_program [TAG_EAGER_SHORT TAG_EAGER_BCOPY];
    tags::a_receive_is_cancelled [TAG_EAGER_SHORT];
    tags::a_cancellation_that_is_too_late_ends_with_the_message [TAG_EAGER_SHORT];
    tags::data_is_read_when_a_receive_matches [TAG_RNDV_ZCOPY GET_ZCOPY] Operation;
    tags::a_full_list_refuses_receives [TAG_EAGER_SHORT];
    tags::receives_match_after_any_number_of_unexpected_messages [TAG_EAGER_SHORT];
    tags::other_operations_are_not_disturbed [TAG_EAGER_SHORT AM_SHORT PUT_SHORT];
    tags::the_end_of_a_connection_ends_what_is_outstanding [TAG_EAGER_SHORT TAG_RNDV_ZCOPY];
    tags::who_matches_no_tags_says_so [];
    memory::rkey_ptr_leads_to_the_peers_bytes [PUT_SHORT];
    rma::put_short [PUT_SHORT] Operation;
    rma::put_bcopy [PUT_BCOPY] Operation;
    rma::put_zcopy [PUT_ZCOPY] Operation;
    rma::get_bcopy [GET_BCOPY] Operation;
    rma::get_zcopy [GET_ZCOPY] Operation;
    rma::zcopy_beyond_the_longest_message [PUT_ZCOPY GET_ZCOPY] Operation;
    lists::every_transfer_of_a_list_is_carried_out [PUT_ZCOPY GET_ZCOPY] Operation;
    messages::am_short [AM_SHORT] Operation;
    messages::am_short_iov [AM_SHORT_IOV] Operation;
    messages::am_bcopy [AM_BCOPY] Operation;
    messages::am_zcopy [AM_ZCOPY] Operation;
    messages::messages_without_handler_are_counted [AM_SHORT];
    messages::handlers_post [AM_SHORT];
    messages::handlers_do_not_nest [AM_SHORT];
    messages::handlers_keep_messages [AM_SHORT];
    messages::a_handler_that_hoards_copies [AM_SHORT];
    messages::a_message_stays_while_its_handler_posts [AM_SHORT];
    kept::handlers_drop_kept_messages_in_any_order [AM_SHORT] Operation;
    kept::kept_messages_leave_the_other_buffers_in_use [AM_SHORT];
    messages::a_handler_replaces_itself [AM_SHORT];
    callbacks::a_panic_in_a_handler_does_no_harm [AM_SHORT] Alone;
    panics::a_message_handler_that_panics_loses_no_message [AM_SHORT] Alone;
    panics::a_completion_callback_that_panics_loses_nothing [PUT_ZCOPY] Alone;
    panics::an_unpack_function_that_panics_completes_its_get [GET_BCOPY] Alone;
    panics::a_pending_request_that_panics_leaves_the_endpoint_usable [PENDING AM_SHORT INTER_PROCESS] Alone;
    panics::a_request_that_panics_behind_puts [PENDING PUT_ZCOPY] Alone;
    panics::an_error_handler_that_panics_is_called_for_every_endpoint [CONNECT_TO_EP ERRHANDLE_PEER_FAILURE] Waiting;
    fork::a_child_does_nothing_to_what_it_inherits [] Alone;
    fork::a_child_opens_its_own [] Alone;
    fork::children_of_a_process_at_work [PUT_ZCOPY CONNECT_TO_EP] Alone;
    limits::small_files [PUT_ZCOPY] Alone;
    limits::few_descriptors [PUT_ZCOPY] Alone;
    reentrancy::pack_of_a_message [AM_BCOPY] Alone;
    reentrancy::pack_of_a_put [PUT_BCOPY] Alone;
    reentrancy::unpack_of_a_get [GET_BCOPY] Alone;
    reentrancy::message_handlers [AM_BCOPY] Alone;
    reentrancy::completion_callbacks [PUT_ZCOPY] Alone;
    reentrancy::error_handlers [PUT_SHORT] Alone;
    reentrancy::pending_requests [PENDING AM_BCOPY] Alone;
    reentrancy::purged_requests [PENDING AM_BCOPY] Alone;
    reentrancy::drops_of_handlers [AM_BCOPY] Alone;
    sleeping::completed_messages_arrive_while_the_sender_sleeps [AM_SHORT];
    sleeping::completed_messages_from_memory_arrive_while_the_sender_sleeps [AM_ZCOPY];
    peers::a_receiver_that_becomes_ready_loses_nothing [AM_SHORT INTER_PROCESS];
    peers::a_receiver_out_of_buffers_recovers [AM_SHORT INTER_PROCESS];
    full_queues::messages_survive_a_full_queue [AM_SHORT] Operation;
    full_queues::ten_thousand_of_the_longest_short_messages [AM_SHORT];
    full_queues::buffers_run_out_and_come_back [AM_BCOPY INTER_PROCESS];
    memory::a_key_gives_no_more_than_it_says [PUT_ZCOPY ERRHANDLE_REMOTE_MEM] Operation;
    memory::a_key_to_freed_memory_reaches_nothing [PUT_ZCOPY GET_ZCOPY ERRHANDLE_REMOTE_MEM];
    volume::random_operations_equal_a_model [PUT_SHORT PUT_BCOPY PUT_ZCOPY GET_ZCOPY] Operation;
    atomics::atomics [ATOMIC_CPU] Operation;
    atomics::fetches_in_flight_do_not_mix [ATOMIC_CPU];
    atomics::every_operation_on_words_of_both_sizes [ATOMIC_CPU];
    atomics::concurrent_changes_of_one_word_are_exact [ATOMIC_CPU];
    ordering::fence_orders [PUT_SHORT AM_SHORT] Operation;
    ordering::flush_counts_its_completion_down_after_the_operations [PUT_ZCOPY] Operation;
    ordering::flush_of_an_interface [PUT_ZCOPY] Operation;
    fences::a_write_behind_a_fence_does_not_change_an_earlier_get [PUT_ZCOPY GET_ZCOPY];
    fences::a_put_behind_a_fence_does_not_change_what_an_earlier_get_unpacks [PUT_ZCOPY GET_BCOPY];
    fences::a_get_behind_a_fence_reads_what_an_earlier_put_wrote [PUT_ZCOPY GET_ZCOPY];
    fences::a_put_behind_a_fence_sends_what_an_earlier_get_brought [PUT_ZCOPY GET_ZCOPY];
    fences::a_message_behind_a_fence_sends_what_an_earlier_get_brought [GET_ZCOPY AM_ZCOPY];
    fences::a_message_behind_a_fence_arrives_after_earlier_puts [PUT_ZCOPY AM_SHORT];
    fences::a_put_behind_a_fence_arrives_after_earlier_messages [PUT_SHORT AM_BCOPY];
    ordering::one_completion_serves_many_operations [PUT_ZCOPY];
    closing::cancel_with_nothing_outstanding [];
    closing::cancel_completes_everything_once [PUT_ZCOPY] Operation;
    pending::pending_requests_keep_order [PENDING AM_SHORT INTER_PROCESS] Operation;
    pending::pending_requests_flush_and_add [PENDING AM_SHORT INTER_PROCESS];
    pending::a_deferred_request_runs_before_a_sleep [PENDING AM_SHORT INTER_PROCESS EVENT_FD];
    ordering::completions_post [AM_SHORT AM_ZCOPY];
    pending::pending_requests_take_turns [PENDING AM_SHORT INTER_PROCESS];
    pending::pending_requests_are_purged_once [PENDING AM_SHORT INTER_PROCESS];
    pending::requests_are_dropped_with_their_endpoint [PENDING AM_SHORT INTER_PROCESS];
    pending::a_request_that_defers_another_runs_once_per_progress [PENDING];
    ordering::small_puts_finish_beside_large_ones [PUT_ZCOPY INTER_PROCESS];
    processes::a_killed_peer_is_told_once [CONNECT_TO_EP ERRHANDLE_PEER_FAILURE] Waiting;
    processes::what_a_killed_peer_has_sent_is_received [CONNECT_TO_EP ERRHANDLE_PEER_FAILURE AM_SHORT];
    keepalive::a_dead_peer_is_reported_to_a_side_that_only_polls [CONNECT_TO_EP ERRHANDLE_PEER_FAILURE] Waiting;
    keepalive::a_dead_peer_is_reported_to_a_side_that_sleeps [CONNECT_TO_EP ERRHANDLE_PEER_FAILURE EVENT_FD] Waiting;
    check::a_peer_that_lives_is_not_disturbed [EP_CHECK] Operation;
    check::a_peer_that_closed_is_reported [EP_CHECK];
    check::who_was_cancelled_asks_nobody [EP_CHECK];
    events::who_cannot_tell_says_so [];
    events::an_idle_worker_sleeps_until_the_time_is_over [EVENT_FD];
    events::a_message_wakes_an_armed_worker [EVENT_FD AM_SHORT INTER_PROCESS] Operation;
    events::both_ends_sleep_and_no_wake_up_is_lost [EVENT_FD AM_SHORT INTER_PROCESS] Operation;
    closing::dropping_an_endpoint_completes_what_is_in_flight [PUT_ZCOPY CONNECT_TO_EP];
    closing::dropping_the_worker_completes_what_is_in_flight [PUT_ZCOPY];
    closing::any_order_of_dropping_is_safe [PUT_ZCOPY];
    callbacks::a_pack_closure_ends_its_connection [AM_BCOPY];
    callbacks::a_handler_drops_its_endpoint [AM_SHORT INTER_PROCESS];
    callbacks::a_callback_drops_its_endpoint [PUT_ZCOPY INTER_PROCESS];
    callbacks::handlers_open_and_flush [AM_SHORT INTER_PROCESS];
    volume::a_million_messages_through_a_small_ring [AM_SHORT INTER_PROCESS];
    ordering::puts_stay_behind_many_gets [PUT_ZCOPY GET_ZCOPY];
    counters::operations_and_their_bytes_are_counted [];
    counters::refusals_and_requests_that_wait_are_counted [PENDING AM_SHORT INTER_PROCESS];
    counters::interfaces_add_up_their_endpoints [AM_SHORT CONNECT_TO_EP];
    full_queues::two_full_ends_do_not_block_each_other [AM_SHORT INTER_PROCESS];
}
