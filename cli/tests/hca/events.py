"""A shared receive queue with fewer receives than its limit tells so, once, and can be destroyed after that is acknowledged."""

import pyverbs.enums as e
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr

context = Context(name="mlx5_0")
pd = PD(context)
srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=16)))
srq.modify(SrqAttr(max_wr=16, srq_limit=4), e.IBV_SRQ_LIMIT)
event = context.get_async_event()
print("limit reached:", event.event_type == e.IBV_EVENT_SRQ_LIMIT_REACHED)
event.ack()
srq.close()
print("closed")
