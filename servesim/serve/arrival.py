"""When bytes came, by the kernel's own clock where it tells (Linux): a loop that woke late does not make them late.

The receive time comes beside the data of a TCP socket (SO_TIMESTAMPNS, socket(7)), on the wall's calendar clock; it is
brought over to the monotonic one, and believed if it lies within the last second.
"""

from __future__ import annotations

import socket
import struct
import time

from servesim.client.health import KERNEL_STAMPS, SO_TIMESTAMPNS

ANCILLARY_BYTES = 64
_TIMESPEC = struct.Struct("@ll")
_BELIEVED_S = 1.0

Ancillary = list[tuple[int, int, bytes]]


def ask_for_stamps(sock: socket.socket) -> None:
    """Make the kernel tell when bytes came, if it can."""
    if KERNEL_STAMPS:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError:
            pass  # then they came when they were seen


def came_at(ancillary: Ancillary, seen_s: float) -> float:
    """Return when the bytes came that were seen at `seen_s`, on the monotonic clock."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            came_s: float = time.monotonic() - (time.time() - (seconds + nanoseconds * 1e-9))
            if seen_s - _BELIEVED_S < came_s < seen_s:
                return came_s
    return seen_s
