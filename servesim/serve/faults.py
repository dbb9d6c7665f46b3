"""Faults on demand: what a client, a gateway or a dashboard makes of a server that fails, falls silent or hangs up.

Each request draws its fate from one random stream, in order of arrival, so that a run can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.workload.seeds import random_stream


@dataclass(slots=True, frozen=True, kw_only=True)
class Fate:
    """What is to go wrong with one request; by default nothing."""

    fails: bool = False  # answered with a 500
    stall_at: float | None = None  # share of the answer after which nothing is sent for a while
    cut_at: float | None = None  # share of the answer after which the connection is closed


FINE = Fate()


class Faults:
    """Shares of requests that fail, stall and are cut, each from 0 to 1."""

    def __init__(self, *, fail: float = 0.0, stall: float = 0.0, cut: float = 0.0, seed: int = 7) -> None:
        self._shares = fail, stall, cut
        self._random = random_stream(seed, "faults").random

    def draw(self) -> Fate:
        """Return the next request's fate."""
        if not any(self._shares):
            return FINE
        fails, stalls, cuts = (self._random() < share for share in self._shares)
        at = self._random()
        return Fate(fails=fails, stall_at=at if stalls else None, cut_at=at if cuts else None)
