"""How much a peer may make us hold, and what we say when it goes beyond or breaks the protocol.

Every decoder of this room keeps at most one of these of bytes that it has not yet handed on.
"""

from __future__ import annotations

from servesim.errors import RunError

MAX_CHUNK_HEADER_BYTES = 4096  # a chunk's size with its extensions
MAX_TRAILER_BYTES = 65536  # all trailer lines of one body
MAX_EVENT_BYTES = 16 * 1024 * 1024  # one line of a stream, one event, or one answer that is not a stream
MAX_INFLATED_BYTES = 64 * 1024 * 1024  # what one read may grow to when decompressed


class ProtocolError(RunError):
    """The peer sent bytes that its protocol does not allow, or more of them than anyone should hold."""
