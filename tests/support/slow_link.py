"""A link between two network namespaces that delays and loses packets; a line on standard input changes the loss.

``python -m tests.support.slow_link FIRST SECOND SECONDS LOSS``: ``SECONDS`` is the delay in each direction, ``LOSS`` is
the share of packets that are lost. It does in user space what the qdisc netem does where the kernel has it.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from pathlib import Path

DEVICE = "hosts0"
_SET_DEVICE = 0x400454CA  # TUNSETIFF
_PACKETS = 0x1001  # IFF_TUN | IFF_NO_PI
_NETWORK = 0x40000000  # CLONE_NEWNET
_LONGEST = 65536


def open_device(space: str) -> int:
    """Return the descriptor of a new device in the network namespace ``space``, which this thread enters."""
    with Path("/var/run/netns", space).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _SET_DEVICE, struct.pack("16sH", DEVICE.encode(), _PACKETS))
    return descriptor


def forward(first: int, second: int, delay: float, loss: float) -> None:
    """Pass packets on between the devices until standard input ends."""
    other, chance = {first: second, second: first}, random.Random(0)
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for ready in select.select([first, second, sys.stdin], [], [], patience)[0]:
            if ready is sys.stdin:
                if not (line := sys.stdin.readline()):
                    return
                loss = float(line)
                continue
            packet, number = os.read(ready, _LONGEST), number + 1
            if chance.random() >= loss:
                heapq.heappush(waiting, (time.monotonic() + delay, number, other[ready], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(waiting)
            try:
                os.write(device, packet)
            except OSError:  # the device is not up yet
                continue


if __name__ == "__main__":
    devices = [open_device(space) for space in sys.argv[1:3]]
    sys.stdout.write("open\n")
    sys.stdout.flush()
    forward(*devices, float(sys.argv[3]), float(sys.argv[4]))
