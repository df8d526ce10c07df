"""Asynchronous events: each kind comes once, is about the right object, and counts when the object is destroyed.

Which events of port and device there are depends on the faults that the run was started with: `events.py KIND`.
"""

import ctypes
import errno
import os
import select
import stat
import sys

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, SendWR

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
PATIENCE = 20

def descriptors():
    return {int(name) for name in os.listdir("/proc/self/fd")}


before = descriptors()
context = Context(name="mlx5_0")
# pyverbs does not tell which of the new descriptors has the events. Nothing comes by the others.
channel = [one for one in descriptors() - before if os.path.exists(f"/proc/self/fd/{one}")]
pd = PD(context)
mr = MR(pd, 4096, RIGHTS)


def waits(patience):
    """Whether an event comes in time."""
    sockets = [one for one in channel if stat.S_ISSOCK(os.fstat(one).st_mode)]
    return bool(select.select(sockets, [], [], patience)[0])


def events(kinds):
    """Waits for events of these kinds, in any order, and acknowledges them."""
    kinds = list(kinds)
    while kinds:
        if not waits(PATIENCE):
            sys.exit(f"no event of {kinds}")
        event = context.get_async_event()
        if event.event_type not in kinds:
            sys.exit(f"event {event.event_type}, not one of {kinds}")
        kinds.remove(event.event_type)
        event.ack()


def none():
    """No other event waits."""
    if waits(0.05):
        sys.exit(f"one event too many: {context.get_async_event().event_type}")


def connected(cq, srq=None):
    """Two queue pairs that are each other's peers."""
    cap = QPCap(max_send_wr=64)
    qps = [QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, srq=srq, cap=cap, sq_sig_all=1)) for _ in range(2)]
    route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0)
    for qp, peer in zip(qps, reversed(qps)):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = RIGHTS
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = peer.qp_num
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 10, 7, 7, 12
        qp.to_rts(attr)
    return qps


def write(qp, rkey):
    """An RDMA write of 8 bytes."""
    wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(mr.buf, 8, mr.lkey)], send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_rdma(rkey, mr.buf + 64)
    qp.post_send(wr)


def wait(cq):
    """The status of the next completion."""
    while True:
        count, completions = cq.poll(1)
        if count:
            return completions[0].status


def limit():
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=16)))
    srq.modify(SrqAttr(max_wr=16, srq_limit=4), e.IBV_SRQ_LIMIT)
    events([e.IBV_EVENT_SRQ_LIMIT_REACHED])
    none()
    srq.close()


def last_wqe():
    srq, cq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=16))), CQ(context, 16)
    qps = connected(cq, srq)
    for qp in qps:
        qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    events([e.IBV_EVENT_QP_LAST_WQE_REACHED] * 2)
    none()
    for each in [*qps, srq, cq]:
        each.close()


def access():
    cq = CQ(context, 16)
    qps = connected(cq)
    write(qps[0], mr.rkey + 1)
    if wait(cq) != e.IBV_WC_REM_ACCESS_ERR:
        sys.exit("the key is wrong, and nobody said so")
    events([e.IBV_EVENT_QP_ACCESS_ERR])
    none()
    for each in [*qps, cq]:
        each.close()


def overrun():
    cq = CQ(context, 3)
    qps = connected(cq)
    for _ in range(8):
        write(qps[0], mr.rkey)
    # Who completes to the queue can go on no more.
    events([e.IBV_EVENT_CQ_ERR, e.IBV_EVENT_QP_FATAL])
    none()
    for each in [*qps, cq]:
        each.close()


def port():
    cq = CQ(context, 16)
    qps = connected(cq)
    while not waits(0):
        write(qps[0], mr.rkey)
        wait(cq)
    if context.query_port(1).state not in (e.IBV_PORT_DOWN, e.IBV_PORT_ACTIVE):
        sys.exit("the port is neither up nor down")
    events([e.IBV_EVENT_PORT_ERR, e.IBV_EVENT_PORT_ACTIVE])


def link():
    set_link = ctypes.CDLL(None).barewire_hca_set_link
    if set_link(7, 0) != errno.ENODEV:
        sys.exit("the link of a device that is not open was set")
    for up, kind in [(0, e.IBV_EVENT_PORT_ERR), (1, e.IBV_EVENT_PORT_ACTIVE)]:
        if set_link(0, up):
            sys.exit("the link of mlx5_0 was not set")
        events([kind])
    none()


def fatal():
    cq = CQ(context, 16)
    qps = connected(cq)
    for _ in range(3):
        write(qps[0], mr.rkey)
        wait(cq)
    events([e.IBV_EVENT_DEVICE_FATAL])
    none()
    # What is there can be taken down.
    for each in [*qps, cq]:
        each.close()


kind = sys.argv[1]
globals()[kind]()
mr.close()
pd.close()
context.close()
print("ok")
