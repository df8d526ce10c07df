//! The list of behaviours, in the order of the tests of UCX that cover them.

use barewire::Flags;

use crate::place::Place;
use crate::{
    atomics, callbacks, check, closing, counters, device_memory, events, fences, fork, full_queues,
    keepalive, kept, limits, lists, memory, messages, ordering, panics, peers, pending, processes,
    reentrancy, registration, rma, setup, sleeping, tags, views, volume, windows,
};

/// A behaviour that all transports have in common.
pub(crate) struct Behaviour {
    /// The number of UCX's test; 0 if UCX has none.
    pub(crate) row: u8,
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
    ($($row:literal $module:ident :: $name:ident [$($need:ident)*] $($kind:ident)?)+) => {
        pub(crate) const BEHAVIOURS: &[Behaviour] = &[$(Behaviour {
            row: $row,
            module: stringify!($module),
            name: stringify!($name),
            needs: Flags::empty()$(.union(Flags::$need))*,
            kind: behaviours!(@kind $($kind)?),
            run: $module::$name,
        }),+];
    };
}

behaviours! {
    0 setup::an_endpoint_that_was_never_connected [CONNECT_TO_EP] Operation
    0 memory::memory_checks_its_bounds []
    0 memory::foreign_memory_is_registered [PUT_ZCOPY]
    0 registration::peers_use_the_address_of_a_registration [PUT_ZCOPY GET_ZCOPY PUT_BCOPY] Operation
    0 registration::atomics_use_the_address_of_a_registration [ATOMIC_CPU]
    0 registration::messages_leave_memory_at_another_address [AM_ZCOPY]
    0 registration::pages_are_brought_in []
    0 registration::one_key_names_all_memory [PUT_ZCOPY GET_ZCOPY]
    0 registration::slices_in_strides [PUT_ZCOPY GET_ZCOPY]
    0 device_memory::memory_on_the_device_is_used_like_any [DEVICE_MEMORY PUT_ZCOPY GET_ZCOPY] Operation
    0 device_memory::memory_on_the_device_has_atomics_and_messages [DEVICE_MEMORY ATOMIC_DEVICE AM_ZCOPY]
    0 device_memory::memory_on_the_device_is_limited [DEVICE_MEMORY]
    0 device_memory::who_has_no_memory_on_the_device_names_others []
    0 device_memory::what_is_no_dma_buf_is_refused []
    0 windows::a_window_opens_its_range_until_it_is_invalidated [WINDOWS PUT_ZCOPY] Operation
    0 windows::a_window_gives_no_more_than_it_says [WINDOWS PUT_ZCOPY ERRHANDLE_REMOTE_MEM]
    0 windows::a_window_that_cannot_be_bound [WINDOWS]
    0 windows::who_has_no_windows_names_others []
    0 windows::a_window_is_free_once_its_endpoint_has_ended [WINDOWS PUT_ZCOPY]
    0 windows::another_endpoint_invalidates_no_window_of_a_peer [WINDOWS PUT_ZCOPY]
    0 windows::a_message_ends_the_access_by_its_key [SEND_INVALIDATE PUT_ZCOPY]
    0 windows::a_message_ends_no_access_to_a_region [SEND_INVALIDATE PUT_ZCOPY]
    0 views::joined_ranges_are_used_like_memory [VIEWS PUT_ZCOPY PUT_BCOPY] Operation
    0 views::columns_are_used_like_memory [VIEWS GET_ZCOPY]
    0 views::a_view_gives_no_more_than_it_says [VIEWS PUT_ZCOPY ERRHANDLE_REMOTE_MEM]
    0 views::transfers_between_views_equal_a_model [VIEWS PUT_ZCOPY GET_ZCOPY PUT_BCOPY GET_BCOPY]
    0 views::messages_are_gathered_from_views [VIEWS AM_ZCOPY]
    0 views::words_of_views_are_changed_atomically [VIEWS ATOMIC_CPU]
    0 views::a_message_ends_no_access_to_a_view [VIEWS SEND_INVALIDATE PUT_ZCOPY]
    0 tags::eager_messages_go_to_the_receives_that_they_match [TAG_EAGER_SHORT TAG_EAGER_BCOPY TAG_EAGER_ZCOPY] Operation
    0 tags::the_receive_that_was_posted_first_gets_the_message [TAG_EAGER_SHORT]
    0 tags::messages_without_a_receive_come_to_the_program [TAG_EAGER_SHORT TAG_EAGER_BCOPY]
    0 tags::a_receive_is_cancelled [TAG_EAGER_SHORT]
    0 tags::a_cancellation_that_is_too_late_ends_with_the_message [TAG_EAGER_SHORT]
    0 tags::data_is_read_when_a_receive_matches [TAG_RNDV_ZCOPY GET_ZCOPY] Operation
    0 tags::a_full_list_refuses_receives [TAG_EAGER_SHORT]
    0 tags::receives_match_after_any_number_of_unexpected_messages [TAG_EAGER_SHORT]
    0 tags::other_operations_are_not_disturbed [TAG_EAGER_SHORT AM_SHORT PUT_SHORT]
    0 tags::the_end_of_a_connection_ends_what_is_outstanding [TAG_EAGER_SHORT TAG_RNDV_ZCOPY]
    0 tags::who_matches_no_tags_says_so []
    25 memory::rkey_ptr_leads_to_the_peers_bytes [PUT_SHORT]
    1 rma::put_short [PUT_SHORT] Operation
    1 rma::put_bcopy [PUT_BCOPY] Operation
    1 rma::put_zcopy [PUT_ZCOPY] Operation
    1 rma::get_bcopy [GET_BCOPY] Operation
    1 rma::get_zcopy [GET_ZCOPY] Operation
    1 rma::zcopy_beyond_the_longest_message [PUT_ZCOPY GET_ZCOPY] Operation
    1 lists::every_transfer_of_a_list_is_carried_out [PUT_ZCOPY GET_ZCOPY] Operation
    2 messages::am_short [AM_SHORT] Operation
    2 messages::am_short_iov [AM_SHORT_IOV] Operation
    2 messages::am_bcopy [AM_BCOPY] Operation
    2 messages::am_zcopy [AM_ZCOPY] Operation
    2 messages::messages_without_handler_are_counted [AM_SHORT]
    2 messages::handlers_post [AM_SHORT]
    2 messages::handlers_do_not_nest [AM_SHORT]
    2 messages::handlers_keep_messages [AM_SHORT]
    2 messages::a_handler_that_hoards_copies [AM_SHORT]
    2 messages::a_message_stays_while_its_handler_posts [AM_SHORT]
    2 kept::handlers_drop_kept_messages_in_any_order [AM_SHORT] Operation
    2 kept::kept_messages_leave_the_other_buffers_in_use [AM_SHORT]
    2 messages::a_handler_replaces_itself [AM_SHORT]
    2 callbacks::a_panic_in_a_handler_does_no_harm [AM_SHORT] Alone
    2 panics::a_message_handler_that_panics_loses_no_message [AM_SHORT] Alone
    0 panics::a_completion_callback_that_panics_loses_nothing [PUT_ZCOPY] Alone
    0 panics::an_unpack_function_that_panics_completes_its_get [GET_BCOPY] Alone
    0 panics::a_pending_request_that_panics_leaves_the_endpoint_usable [PENDING AM_SHORT INTER_PROCESS] Alone
    0 panics::a_request_that_panics_behind_puts [PENDING PUT_ZCOPY] Alone
    0 panics::an_error_handler_that_panics_is_called_for_every_endpoint [CONNECT_TO_EP ERRHANDLE_PEER_FAILURE] Waiting
    0 fork::a_child_does_nothing_to_what_it_inherits [] Alone
    0 fork::a_child_opens_its_own [] Alone
    0 fork::children_of_a_process_at_work [PUT_ZCOPY CONNECT_TO_EP] Alone
    0 limits::small_files [PUT_ZCOPY] Alone
    0 limits::few_descriptors [PUT_ZCOPY] Alone
    0 reentrancy::pack_of_a_message [AM_BCOPY] Alone
    0 reentrancy::pack_of_a_put [PUT_BCOPY] Alone
    0 reentrancy::unpack_of_a_get [GET_BCOPY] Alone
    0 reentrancy::message_handlers [AM_BCOPY] Alone
    0 reentrancy::completion_callbacks [PUT_ZCOPY] Alone
    0 reentrancy::error_handlers [PUT_SHORT] Alone
    0 reentrancy::pending_requests [PENDING AM_BCOPY] Alone
    0 reentrancy::purged_requests [PENDING AM_BCOPY] Alone
    0 reentrancy::drops_of_handlers [AM_BCOPY] Alone
    2 sleeping::completed_messages_arrive_while_the_sender_sleeps [AM_SHORT]
    2 sleeping::completed_messages_from_memory_arrive_while_the_sender_sleeps [AM_ZCOPY]
    3 peers::a_receiver_that_becomes_ready_loses_nothing [AM_SHORT INTER_PROCESS]
    3 peers::a_receiver_out_of_buffers_recovers [AM_SHORT INTER_PROCESS]
    4 full_queues::messages_survive_a_full_queue [AM_SHORT] Operation
    4 full_queues::ten_thousand_of_the_longest_short_messages [AM_SHORT]
    5 full_queues::buffers_run_out_and_come_back [AM_BCOPY INTER_PROCESS]
    7 memory::a_key_gives_no_more_than_it_says [PUT_ZCOPY ERRHANDLE_REMOTE_MEM] Operation
    7 memory::a_key_to_freed_memory_reaches_nothing [PUT_ZCOPY GET_ZCOPY ERRHANDLE_REMOTE_MEM]
    8 volume::random_operations_equal_a_model [PUT_SHORT PUT_BCOPY PUT_ZCOPY GET_ZCOPY] Operation
    9 atomics::atomics [ATOMIC_CPU] Operation
    9 atomics::fetches_in_flight_do_not_mix [ATOMIC_CPU]
    9 atomics::every_operation_on_words_of_both_sizes [ATOMIC_CPU]
    9 atomics::concurrent_changes_of_one_word_are_exact [ATOMIC_CPU]
    10 ordering::fence_orders [PUT_SHORT AM_SHORT] Operation
    11 ordering::flush_counts_its_completion_down_after_the_operations [PUT_ZCOPY] Operation
    11 ordering::flush_of_an_interface [PUT_ZCOPY] Operation
    10 fences::a_write_behind_a_fence_does_not_change_an_earlier_get [PUT_ZCOPY GET_ZCOPY]
    10 fences::a_put_behind_a_fence_does_not_change_what_an_earlier_get_unpacks [PUT_ZCOPY GET_BCOPY]
    10 fences::a_get_behind_a_fence_reads_what_an_earlier_put_wrote [PUT_ZCOPY GET_ZCOPY]
    10 fences::a_put_behind_a_fence_sends_what_an_earlier_get_brought [PUT_ZCOPY GET_ZCOPY]
    10 fences::a_message_behind_a_fence_sends_what_an_earlier_get_brought [GET_ZCOPY AM_ZCOPY]
    10 fences::a_message_behind_a_fence_arrives_after_earlier_puts [PUT_ZCOPY AM_SHORT]
    10 fences::a_put_behind_a_fence_arrives_after_earlier_messages [PUT_SHORT AM_BCOPY]
    11 ordering::one_completion_serves_many_operations [PUT_ZCOPY]
    12 closing::cancel_with_nothing_outstanding []
    12 closing::cancel_completes_everything_once [PUT_ZCOPY] Operation
    13 pending::pending_requests_keep_order [PENDING AM_SHORT INTER_PROCESS] Operation
    13 pending::pending_requests_flush_and_add [PENDING AM_SHORT INTER_PROCESS]
    13 pending::a_deferred_request_runs_before_a_sleep [PENDING AM_SHORT INTER_PROCESS EVENT_FD]
    14 ordering::completions_post [AM_SHORT AM_ZCOPY]
    15 pending::pending_requests_take_turns [PENDING AM_SHORT INTER_PROCESS]
    15 pending::pending_requests_are_purged_once [PENDING AM_SHORT INTER_PROCESS]
    16 ordering::small_puts_finish_beside_large_ones [PUT_ZCOPY INTER_PROCESS]
    17 processes::a_killed_peer_is_told_once [CONNECT_TO_EP ERRHANDLE_PEER_FAILURE] Waiting
    17 keepalive::a_dead_peer_is_reported_to_a_side_that_only_polls [CONNECT_TO_EP ERRHANDLE_PEER_FAILURE] Waiting
    17 keepalive::a_dead_peer_is_reported_to_a_side_that_sleeps [CONNECT_TO_EP ERRHANDLE_PEER_FAILURE EVENT_FD] Waiting
    18 check::a_peer_that_lives_is_not_disturbed [EP_CHECK] Operation
    18 check::a_peer_that_closed_is_reported [EP_CHECK]
    18 check::who_was_cancelled_asks_nobody [EP_CHECK]
    19 events::who_cannot_tell_says_so []
    19 events::an_idle_worker_sleeps_until_the_time_is_over [EVENT_FD]
    19 events::a_message_wakes_an_armed_worker [EVENT_FD AM_SHORT INTER_PROCESS] Operation
    19 events::both_ends_sleep_and_no_wake_up_is_lost [EVENT_FD AM_SHORT INTER_PROCESS] Operation
    20 closing::dropping_an_endpoint_completes_what_is_in_flight [PUT_ZCOPY CONNECT_TO_EP]
    20 closing::dropping_the_worker_completes_what_is_in_flight [PUT_ZCOPY]
    20 closing::any_order_of_dropping_is_safe [PUT_ZCOPY]
    20 callbacks::a_pack_closure_ends_its_connection [AM_BCOPY]
    20 callbacks::a_handler_drops_its_endpoint [AM_SHORT INTER_PROCESS]
    20 callbacks::a_callback_drops_its_endpoint [PUT_ZCOPY INTER_PROCESS]
    20 callbacks::handlers_open_and_flush [AM_SHORT INTER_PROCESS]
    21 volume::a_million_messages_through_a_small_ring [AM_SHORT INTER_PROCESS]
    22 ordering::puts_stay_behind_many_gets [PUT_ZCOPY GET_ZCOPY]
    0 counters::operations_and_their_bytes_are_counted []
    0 counters::refusals_and_requests_that_wait_are_counted [PENDING AM_SHORT INTER_PROCESS]
    0 counters::interfaces_add_up_their_endpoints [AM_SHORT CONNECT_TO_EP]
    23 full_queues::two_full_ends_do_not_block_each_other [AM_SHORT INTER_PROCESS]
}
