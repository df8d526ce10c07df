"""A server of UCXX and three clients, each a process of its own, exchange arrays and check them."""
import asyncio
import subprocess
import sys

import numpy as np
import ucxx

SIZES = [0, 1, 8, 4096, 8192, 8193, 65536, 1 << 20]
CLIENTS = 3


def pattern(size, factor):
    return (np.arange(size, dtype=np.uint64) * factor % 251).astype(np.uint8)


async def exchange(endpoint, own, peer):
    """Sends an array of each size and receives one. Returns how many were right."""
    right = 0
    for size in SIZES:
        received = np.empty(size, dtype=np.uint8)
        await asyncio.gather(endpoint.send(pattern(size, own)), endpoint.recv(received))
        right += (received == pattern(size, peer)).all()
    return right


async def serve():
    done = []

    async def serve_client(endpoint):
        done.append(await exchange(endpoint, 7, 3))
        await endpoint.close()

    listener = ucxx.create_listener(serve_client)
    clients = [
        await asyncio.create_subprocess_exec(sys.executable, __file__, str(listener.port), stdout=subprocess.PIPE)
        for _ in range(CLIENTS)
    ]
    for number, client in enumerate(clients):
        output, _ = await asyncio.wait_for(client.communicate(), 120)
        right = int(output.split()[-1]) if client.returncode == 0 and output else 0
        print(f"passed {right}" if right == len(SIZES) else f"failed client {number}: {right}")
    right = sorted(done) == [len(SIZES)] * CLIENTS
    print(f"passed {sum(done)}" if right else f"failed server: {done}")
    listener.close()


async def connect(port):
    endpoint = await ucxx.create_endpoint(ucxx.get_address(), port)
    print(await exchange(endpoint, 3, 7))
    await endpoint.close()


asyncio.run(connect(int(sys.argv[1])) if len(sys.argv) > 1 else serve())
