"""Extracts libnccl.so.2 of a wheel to a file: `libnccl.py WHEEL FILE`.

The code for GPUs, nearly all of it, becomes holes of the file, which take no room on disk.
"""

import struct
import sys
import zipfile

MEMBER = "nvidia/nccl/lib/libnccl.so.2"
FOR_GPUS = [b"__nv_relfatbin", b".nv_fatbin"]

wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    library = archive.read(MEMBER)

# Of an ELF file of 64 bits: where the section headers are, their size, their number, and which has the names.
start, = struct.unpack_from("<Q", library, 0x28)
size, count, names = struct.unpack_from("<HHH", library, 0x3A)
# Name, type, flags, address, offset, size.
sections = [struct.unpack_from("<IIQQQQ", library, start + at * size) for at in range(count)]


def name(section):
    begin = sections[names][4] + section[0]
    return library[begin:library.index(b"\0", begin)]


holes = sorted(section[4:6] for section in sections if name(section) in FOR_GPUS)
with open(target, "wb") as file:
    end = 0
    for offset, length in holes:
        file.seek(end)
        file.write(library[end:offset])
        end = offset + length
    file.seek(end)
    file.write(library[end:])
