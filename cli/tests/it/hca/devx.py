"""Commands of a program's own through libmlx5 (DEVX): what comes back, which a kernel lets pass, and what objects are."""

import ctypes
import errno
import mmap
import os
import select
import struct
import sys
from ctypes import POINTER, byref, c_int, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from os import eventfd

ibverbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
mlx5 = ctypes.CDLL("libmlx5.so.1", use_errno=True)


class Attributes(ctypes.Structure):
    _fields_ = [("flags", c_uint32), ("comp_mask", c_uint64)]


class Uar(ctypes.Structure):
    _fields_ = [("reg_addr", c_void_p), ("base_addr", c_void_p), ("page_id", c_uint32), ("mmap_off", c_uint64)]


class Umem(ctypes.Structure):
    _fields_ = [("umem_id", c_uint32)]


class Channel(ctypes.Structure):
    _fields_ = [("fd", c_int)]


for library, name, result in [
    (ibverbs, "ibv_get_device_list", POINTER(c_void_p)),
    (mlx5, "mlx5dv_open_device", c_void_p),
    (mlx5, "mlx5dv_devx_obj_create", c_void_p),
    (mlx5, "mlx5dv_devx_umem_reg", POINTER(Umem)),
    (mlx5, "mlx5dv_devx_alloc_uar", POINTER(Uar)),
    (mlx5, "mlx5dv_devx_create_event_channel", POINTER(Channel)),
]:
    getattr(library, name).restype = result

ALLOC_PD, DEALLOC_PD, ALLOC_UAR, ALLOC_Q_COUNTER, QUERY_Q_COUNTER = 0x800, 0x801, 0x802, 0x771, 0x773
QUERY_HCA_CAP, QUERY_ROCE_ADDRESS, CREATE_CQ, QUERY_CQ, QUERY_QP, NO_SUCH = 0x100, 0x760, 0x400, 0x402, 0x50B, 0xAFF
CREATE_RMP, MODIFY_RMP, SRQ_LIMIT, PAGE_FAULT = 0x90C, 0x90D, 0x14, 0x0C
CREATE_QP, QP_TO_ERROR, LAST_WQE = 0x500, 0x507, 0x13


def command(opcode, length=16, op_mod=0, words=()):
    """A command with 32-bit words at byte offsets."""
    data = bytearray(length)
    struct.pack_into(">H4xH", data, 0, opcode, op_mod)
    for offset, word in words:
        struct.pack_into(">I", data, offset, word)
    return bytes(data)


def number(output):
    return struct.unpack_from(">I", output, 8)[0] & 0xFFFFFF


def outcome(output):
    """Status and whether there is a syndrome."""
    return output[0], struct.unpack_from(">I", output, 4)[0] != 0


def general(data, room=16):
    output = ctypes.create_string_buffer(room)
    error = mlx5.mlx5dv_devx_general_cmd(c_void_p(context), data, c_size_t(len(data)), output, c_size_t(room))
    return error, output.raw


def create(data, room=16):
    output = ctypes.create_string_buffer(room)
    obj = mlx5.mlx5dv_devx_obj_create(c_void_p(context), data, c_size_t(len(data)), output, c_size_t(room))
    return obj, ctypes.get_errno() if obj is None else 0, output.raw


def about(call, obj, data, room=16):
    output = ctypes.create_string_buffer(room)
    error = call(c_void_p(obj), data, c_size_t(len(data)), output, c_size_t(room))
    return error, output.raw


def expect(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got}, not {want}")


devices = ibverbs.ibv_get_device_list(None)
context = mlx5.mlx5dv_open_device(c_void_p(devices[0]), byref(Attributes(flags=1)))
if context is None:
    sys.exit(f"no DEVX: {os.strerror(ctypes.get_errno())}")

# The device in general: pages are cut to the room that there is.
for room in (64, 2064, 4112):
    error, output = general(command(QUERY_HCA_CAP, op_mod=1), room)
    expect("QUERY_HCA_CAP", (error, output[0]), (0, 0))
error, output = general(command(QUERY_ROCE_ADDRESS), 48)
expect("QUERY_ROCE_ADDRESS", (error, output[16 + 10 : 16 + 12]), (0, b"\xff\xff"))
# What the device refuses comes back with status and syndrome, and libmlx5 makes an error number of it (or hands EREMOTEIO on).
error, output = general(command(QUERY_ROCE_ADDRESS, words=[(8, 0xFFFF0000)]), 48)
expect("a bad index", (error in (errno.EINVAL, errno.EREMOTEIO), outcome(output)), (True, (0x0A, True)))
error, output = general(command(NO_SUCH))
expect("an unknown command", (error in (errno.EINVAL, errno.EREMOTEIO), outcome(output)), (True, (0x02, True)))
# What a kernel keeps for itself does not reach the device.
for opcode in (ALLOC_PD, ALLOC_UAR, DEALLOC_PD, QUERY_QP):
    error, output = general(command(opcode))
    expect(f"command {opcode:#x} as a general one", (error, outcome(output)), (errno.EINVAL, (0, False)))
expect("ALLOC_UAR as an object", create(command(ALLOC_UAR))[:2], (None, errno.EINVAL))

# Objects.
pd, error, output = create(command(ALLOC_PD))
expect("ALLOC_PD", error, 0)
pdn = number(output)
counters, error, output = create(command(ALLOC_Q_COUNTER))
expect("ALLOC_Q_COUNTER", error, 0)
query = command(QUERY_Q_COUNTER, 32, words=[(28, number(output))])
expect("QUERY_Q_COUNTER", about(mlx5.mlx5dv_devx_obj_query, counters, query, 272)[0], 0)
expect("counters of a domain", about(mlx5.mlx5dv_devx_obj_query, pd, query, 272)[0], errno.EINVAL)

memory = mmap.mmap(-1, 8192)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
umem = mlx5.mlx5dv_devx_umem_reg(c_void_p(context), c_void_p(address), c_size_t(8192), c_uint32(1))
expect("a umem", bool(umem), True)
pages = {}
for kind in (0, 1):
    uar = mlx5.mlx5dv_devx_alloc_uar(c_void_p(context), c_uint32(kind))
    expect("a UAR page", bool(uar), True)
    page = uar.contents
    expect("its register", (page.reg_addr - page.base_addr, page.base_addr % 4096), (0x800, 0))
    pages[kind] = uar
expect("pages of their own", pages[0].contents.page_id != pages[1].contents.page_id, True)
eqn = c_uint32(0)
expect("an event queue", mlx5.mlx5dv_devx_query_eqn(c_void_p(context), c_uint32(0), byref(eqn)), 0)


def create_cq(eqn):
    # cqc: umem of the doorbell record, log_cq_size and UAR page, event queue, doorbell's offset; then the ring's umem.
    return command(
        CREATE_CQ,
        272,
        words=[
            (16, 0x02000000),
            (20, umem.contents.umem_id),
            (28, 4 << 24 | pages[1].contents.page_id),
            (36, eqn),
            (76, 4096),
            (88, umem.contents.umem_id),
            (92, 0x80000000),
        ],
    )


expect("a wrong event queue", create(create_cq(eqn.value + 1))[:2], (None, errno.ENOENT))
cq, error, output = create(create_cq(eqn.value))
expect("CREATE_CQ", (error, outcome(output)), (0, (0, False)))
cqn = number(output)
error, output = about(mlx5.mlx5dv_devx_obj_query, cq, command(QUERY_CQ, words=[(8, cqn)]), 272)
expect("QUERY_CQ", (error, output[16 + 12] & 31), (0, 4))
expect("another's number", about(mlx5.mlx5dv_devx_obj_query, cq, command(QUERY_CQ, words=[(8, cqn + 1)]), 272)[0], errno.EINVAL)
expect("a query by modify", about(mlx5.mlx5dv_devx_obj_modify, cq, command(QUERY_CQ, words=[(8, cqn)]), 272)[0], errno.EINVAL)
expect("memory in use", mlx5.mlx5dv_devx_umem_dereg(umem) != 0, True)

# Events: the kernel of OFED reports once that a receive memory pool has fewer receives than its
# limit. That of Linux does not find the pool by its event ("strict"), and refuses subscriptions to
# events that a pool cannot have.
strict = "strict" in sys.argv
rmpc = [(32, 0x00100000), (88, pdn), (100, 4096 + 64), (112, 5 << 16 | 4), (116, 0xC0000000)]
rmpc += [(120, umem.contents.umem_id), (124, umem.contents.umem_id), (132, 2048)]
rmp, error, output = create(command(CREATE_RMP, 272, words=rmpc))
expect("CREATE_RMP", (error, outcome(output)), (0, (0, False)))
rmpn = number(output)
channel = mlx5.mlx5dv_devx_create_event_channel(c_void_p(context), c_int(0))
expect("an event channel", bool(channel), True)
kinds = (c_uint16 * 1)(SRQ_LIMIT)
subscribed = mlx5.mlx5dv_devx_subscribe_devx_event(channel, c_void_p(rmp), c_uint16(2), kinds, c_uint64(7))
expect("a subscription", subscribed, 0)
counter = eventfd(0)
subscribed = mlx5.mlx5dv_devx_subscribe_devx_event_fd(channel, c_int(counter), c_void_p(rmp), c_uint16(SRQ_LIMIT))
expect("a subscription of an eventfd", subscribed, 0)
expect("no event yet", select.select([channel.contents.fd, counter], [], [], 0)[0], [])
limit = [(8, 1 << 28 | rmpn), (20, 1), (32, 0x00100000), (84, 3)]
error, output = about(mlx5.mlx5dv_devx_obj_modify, rmp, command(MODIFY_RMP, 272, words=limit))
expect("MODIFY_RMP", (error, outcome(output)), (0, (0, False)))
kinds = (c_uint16 * 1)(PAGE_FAULT)
subscribed = mlx5.mlx5dv_devx_subscribe_devx_event(channel, c_void_p(rmp), c_uint16(2), kinds, c_uint64(7))
expect("a subscription to page faults", subscribed != 0, True)


def next_event():
    """Cookie and type of the channel's next event, which must come."""
    expect("an event", bool(select.select([channel.contents.fd], [], [], 20)[0]), True)
    event = ctypes.create_string_buffer(128)
    length = mlx5.mlx5dv_devx_get_event(channel, event, c_size_t(128))
    expect("its length", length, 8 + 64)
    return struct.unpack_from("<Q", event.raw)[0], event.raw[8 + 1]


if not strict:
    expect("the event", next_event(), (7, SRQ_LIMIT))
    expect("the eventfd's event", bool(select.select([counter], [], [], 20)[0]), True)
    expect("one event", struct.unpack("=Q", os.read(counter, 8))[0], 1)
# A later event on the same channel: a queue pair on the pool is in error. An event of the limit
# would have come before it.
qpc = [(24, 3 << 11), (28, pdn), (32, 1 << 15), (24 + 124, cqn), (24 + 156, cqn), (24 + 164, 4096 + 128)]
qpc += [(24 + 172, 1 << 24 | rmpn), (24 + 228, umem.contents.umem_id), (264, umem.contents.umem_id)]
qp, error, output = create(command(CREATE_QP, 272, words=qpc))
expect("CREATE_QP", (error, outcome(output)), (0, (0, False)))
qpn = number(output)
kinds = (c_uint16 * 1)(LAST_WQE)
subscribed = mlx5.mlx5dv_devx_subscribe_devx_event(channel, c_void_p(qp), c_uint16(2), kinds, c_uint64(8))
expect("a subscription of a queue pair", subscribed, 0)
error, output = about(mlx5.mlx5dv_devx_obj_modify, qp, command(QP_TO_ERROR, words=[(8, qpn)]))
expect("2ERR_QP", (error, outcome(output)), (0, (0, False)))
expect("the later event", next_event(), (8, LAST_WQE))
expect("no other event", select.select([channel.contents.fd, counter], [], [], 0)[0], [])
expect("the queue pair's end", mlx5.mlx5dv_devx_obj_destroy(c_void_p(qp)), 0)
expect("the pool's end", mlx5.mlx5dv_devx_obj_destroy(c_void_p(rmp)), 0)
mlx5.mlx5dv_devx_destroy_event_channel(channel)
for obj in (cq, counters, pd):
    expect("an end", mlx5.mlx5dv_devx_obj_destroy(c_void_p(obj)), 0)
expect("memory's end", mlx5.mlx5dv_devx_umem_dereg(umem), 0)
for uar in pages.values():
    mlx5.mlx5dv_devx_free_uar(uar)
expect("the device's end", ibverbs.ibv_close_device(c_void_p(context)), 0)
print("ok")
