//! The table of operations, which every interface has.

use crate::abi::IfaceOps;
use crate::{endpoint, fetch, iface, post, query};

pub(crate) const OPS: IfaceOps = IfaceOps {
    ep_put_short: post::put_short,
    ep_put_bcopy: post::put_bcopy,
    ep_put_zcopy: post::put_zcopy,

    ep_get_short: fetch::get_short,
    ep_get_bcopy: fetch::get_bcopy,
    ep_get_zcopy: post::get_zcopy,

    ep_am_short: post::am_short,
    ep_am_short_iov: post::am_short_iov,
    ep_am_bcopy: post::am_bcopy,
    ep_am_zcopy: post::am_zcopy,

    ep_atomic_cswap64: fetch::atomic_cswap64,
    ep_atomic_cswap32: fetch::atomic_cswap32,
    ep_atomic32_post: post::atomic32_post,
    ep_atomic64_post: post::atomic64_post,
    ep_atomic32_fetch: fetch::atomic32_fetch,
    ep_atomic64_fetch: fetch::atomic64_fetch,

    ep_pending_add: endpoint::pending_add,
    ep_pending_purge: endpoint::pending_purge,

    ep_flush: endpoint::flush,
    ep_fence: endpoint::fence,
    ep_check: endpoint::check,

    ep_create: endpoint::create,

    ep_destroy: endpoint::destroy,
    ep_get_address: endpoint::get_address,
    ep_connect_to_ep: endpoint::connect_to_ep,

    iface_flush: iface::flush,
    iface_fence: iface::fence,

    iface_progress_enable: iface::progress_enable,
    iface_progress_disable: iface::progress_disable,
    iface_progress: iface::progress,

    iface_event_fd_get: iface::event_fd_get,
    iface_event_arm: iface::event_arm,

    iface_close: iface::close,
    iface_query: query::query,

    iface_get_device_address: iface::get_device_address,
    iface_get_address: iface::get_address,
    iface_is_reachable: endpoint::is_reachable,

    // Tag matching and connection management.
    ..IfaceOps::REFUSING
};
