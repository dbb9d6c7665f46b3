"""The link over which KV goes from prefill to decode engines."""

from __future__ import annotations

from dataclasses import dataclass, field

from servesim.errors import InputError
from servesim.units import suggest

SCOPES = {
    "shared": "one link for all engines",
    "pair": "a link of its own for every pair of a prefill and a decode engine",
}

OVERLAPS = {
    "none": "the KV leaves when the whole prompt is computed",
    "chunk": "the KV of a chunk of the prompt leaves when the step that computed it ends",
    "layer": "the KV of a layer leaves when the layer is computed, while the step goes on",
}


@dataclass(slots=True, kw_only=True)
class Link:
    """First come, first served: a transfer has the whole link, those behind it wait. `latency_s` is added to each
    transfer and does not keep the link busy.

    `bytes_per_s` is what the link carries of KV, protocol and copies included; infinite is allowed.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    scope: str = "shared"
    overlap: str = "none"
    moved_bytes: int = 0
    busy_s: float = 0.0
    transfers: int = 0
    _free_s: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0.0:
            raise InputError(f"link is {self.bytes_per_s} B/s, must be above 0")
        if not self.latency_s >= 0.0:
            raise InputError(f"link_latency is {self.latency_s} s, must be 0 or more")
        if self.scope not in SCOPES:
            raise suggest("link scope", self.scope, SCOPES)
        if self.overlap not in OVERLAPS:
            raise suggest("transfer overlap", self.overlap, OVERLAPS)

    def carry(
        self, source: int, target: int, size_bytes: int, ready_s: float, last_s: float = 0.0
    ) -> tuple[float, float]:
        """Send `size_bytes` that are ready from `ready_s` on; return when they set out and when the last has arrived.

        `last_s`: the moment before which the last byte cannot leave (a layer that is still being computed).
        """
        pair = (0, 0) if self.scope == "shared" else (source, target)
        start_s = max(ready_s, self._free_s.get(pair, 0.0))
        end_s = max(start_s + size_bytes / self.bytes_per_s, last_s)
        self._free_s[pair] = end_s
        self.moved_bytes += size_bytes
        self.transfers += 1
        self.busy_s += end_s - start_s
        return start_s, end_s + self.latency_s
