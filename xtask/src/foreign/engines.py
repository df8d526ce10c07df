"""Writes and reads of many sizes between two engines of Mooncake, by RDMA. The other engine is a process of its own."""
import subprocess
import sys

import numpy as np
from mooncake.engine import TransferEngine

SIZE = 1 << 20
SIZES = [1, 8, 4096, 65537, SIZE]


def pattern(factor):
    return (np.arange(SIZE, dtype=np.uint64) * factor % 251).astype(np.uint8)


def engine():
    """Returns an engine with a region of memory."""
    this = TransferEngine()
    assert this.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    memory = pattern(7)
    assert this.register_memory(memory.ctypes.data, SIZE) == 0
    return this, memory


def target():
    """Prints where its memory is, and then whether it has what the initiator has written."""
    this, memory = engine()
    print("target", this.get_rpc_port(), memory.ctypes.data, flush=True)
    for line in sys.stdin:
        size = int(line)
        right = (memory[:size] == pattern(3)[:size]).all() and (memory[size:] == pattern(7)[size:]).all()
        memory[:] = pattern(7)
        print("right" if right else "wrong", flush=True)


def answer(peer):
    """Returns the next line of the target that is not of Mooncake."""
    for line in peer.stdout:
        if line.startswith(("target ", "right", "wrong")):
            return line.split()
    sys.exit("failed target: it has ended")


def initiator():
    peer = subprocess.Popen(
        [sys.executable, __file__, "target"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    _, port, there = answer(peer)
    this, memory = engine()
    name, here, there = f"127.0.0.1:{port}", memory.ctypes.data, int(there)
    for size in SIZES:
        memory[:] = 0
        read = this.transfer_sync_read(name, here, there, size) == 0
        right = read and (memory[:size] == pattern(7)[:size]).all() and not memory[size:].any()
        print("passed 1" if right else f"failed read of {size}", flush=True)
        memory[:] = pattern(3)
        written = this.transfer_sync_write(name, here, there, size) == 0
        peer.stdin.write(f"{size}\n")
        peer.stdin.flush()
        right = answer(peer) == ["right"] and written
        print("passed 1" if right else f"failed write of {size}", flush=True)
    peer.stdin.close()
    peer.wait(60)


target() if sys.argv[1:] else initiator()
