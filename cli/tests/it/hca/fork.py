"""A child uses a device that its parent opened, and then one of its own."""

import os
import sys

from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError

parents = Context(name="mlx5_0")
child = os.fork()
if child == 0:
    try:
        PD(parents)
        print("parent's device: ok")
    except PyverbsRDMAError as error:
        print("parent's device: errno", error.error_code)
    own = Context(name="mlx5_0")
    PD(own).close()
    own.close()
    # Its UAR page, whose memory is the parent's device's.
    try:
        parents.close()
    except PyverbsRDMAError:
        pass
    print("its own: ok")
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
if status != 0:
    sys.exit(f"the child ended with {status}")
PD(parents)
print("parent: ok")
