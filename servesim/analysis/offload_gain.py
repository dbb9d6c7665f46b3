"""Where KV tiers below the device stop paying: the size beyond which more of them brings no earlier first token."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.engine.offload import JOIN
from servesim.units import parse_bytes

PAYS = 0.02
"""A larger tier pays if it lowers the mean TTFT by at least this share."""


def stops_paying(sizes: Sequence[str | None], ttft_mean_ms: Sequence[float | None]) -> int | None:
    """Return the number of the smallest size than which none that is larger pays; None if the largest still pays more
    than the one before it, or there is nothing to compare.

    >>> stops_paying(["8GB", "64GB", "16GB", "32GB"], [900.0, 500.0, 600.0, 503.0])
    3
    """
    known = [
        (sum(parse_bytes(part, "kv_offload") for part in size.split(JOIN)) if size else 0, ttft_ms, row)
        for row, (size, ttft_ms) in enumerate(zip(sizes, ttft_mean_ms, strict=True))
        if ttft_ms is not None
    ]
    known.sort()
    for place, (_, here_ms, row) in enumerate(known[:-1]):
        if all(later_ms > here_ms * (1 - PAYS) for _, later_ms, _ in known[place + 1 :]):
            return row
    return None
