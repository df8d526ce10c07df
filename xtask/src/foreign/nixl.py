"""A write and a read of 1 MiB between two agents of NIXL. The other agent is a process of its own."""
import hashlib, os, subprocess, sys, time
import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = 1 << 20


def agent(name):
    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def receive(stream):
    return stream.read(int(stream.readline()))


def send(stream, data):
    stream.write(b"%d\n" % len(data) + data)
    stream.flush()


def target():
    """Serves its memory until its input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    this = agent("target")
    memory = np.arange(SIZE, dtype=np.uint8)
    registered = this.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    send(out, this.get_agent_metadata())
    send(out, b"%d" % memory.ctypes.data)
    for _ in sys.stdin.buffer:
        send(out, memory.tobytes())
    this.deregister_memory(registered)


def transfer(this, kind, here, there):
    handle = this.initialize_xfer(
        kind,
        this.get_xfer_descs([(here.ctypes.data, SIZE, 0)], "DRAM"),
        this.get_xfer_descs([(there, SIZE, 0)], "DRAM"),
        "target",
    )
    state, deadline = this.transfer(handle), time.monotonic() + 60
    while state == "PROC" and time.monotonic() < deadline:
        state = this.check_xfer_state(handle)
    this.release_xfer_handle(handle)
    return state == "DONE"


def initiator():
    peer = subprocess.Popen([sys.executable, __file__, "target"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    this = agent("initiator")
    memory = np.zeros(SIZE, dtype=np.uint8)
    registered = this.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    this.add_remote_agent(receive(peer.stdout))
    there = int(receive(peer.stdout))
    tests = [("read", transfer(this, "READ", memory, there) and (memory == np.arange(SIZE, dtype=np.uint8)).all())]
    memory[:] = np.arange(SIZE, dtype=np.uint8) * 7
    written = transfer(this, "WRITE", memory, there)
    send(peer.stdin, b"")
    tests.append(("write", written and receive(peer.stdout) == memory.tobytes()))
    for name, passed in tests:
        print("passed 1" if passed else f"failed {name}", flush=True)
    this.deregister_memory(registered)
    peer.stdin.close()
    peer.wait(60)


target() if sys.argv[1:] else initiator()
