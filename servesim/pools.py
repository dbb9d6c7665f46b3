"""What a run of several engines comes to beside its latencies: how even the load was, and the stages of a request.

Where prefill and decode are apart, the time to the first token is the sum of five stages:

| stage | from | to |
|---|---|---|
| `queue` | sent | start of the step that first admitted it at its prefill engine |
| `prefill` | that | its prompt is computed |
| `link_wait` | that | what is left of its KV sets out; nothing of it is, where all went during the prefill |
| `transfer` | that | the last of its KV has arrived |
| `decode_queue` | that | start of the step that admitted it at its decode engine: the first token |

A run is read and nothing in it is changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from operator import sub
from typing import Any

from servesim.records import Outcome, Run
from servesim.stats import Distribution, Values, describe

LOADS = ("requests", "computed_tokens", "busy")
"""Figures of a replica whose spread over the replicas is the imbalance of a fleet."""

STAGES: dict[str, tuple[str, str]] = {
    "queue": ("sent_s", "admitted_s"),
    "prefill": ("admitted_s", "prefill_end_s"),
    "link_wait": ("prefill_end_s", "link_start_s"),
    "transfer": ("link_start_s", "transfer_end_s"),
    "decode_queue": ("transfer_end_s", "decode_start_s"),
}
"""Stage -> the columns of times between which it lies."""


def moments(run: Run) -> Callable[[str], array[float]]:
    """Return what gives the column of times of that name, of the run's records or of its stages."""
    known = {"sent_s": run.records.sent_s, "admitted_s": run.records.admitted_s, **run.stages}
    return known.__getitem__


def stages_ms(run: Run) -> dict[str, Distribution | None] | None:
    """Return how long completed requests were in each stage, in ms; None where prefill and decode are not apart."""
    if not run.stages:
        return None
    at = moments(run)
    is_completed = [outcome == Outcome.COMPLETED for outcome in run.records.outcome]

    def of_completed(name: str) -> Iterable[float]:
        return compress(at(name), is_completed)

    return {
        stage: describe(Values(list(map(sub, of_completed(end), of_completed(start)))), scale=1000)
        for stage, (start, end) in STAGES.items()
    }


def imbalance(replicas: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float | None]] | None:
    """Return for each role the largest load of a replica over the mean, 1 where all are alike; None for one engine."""
    by_role: dict[str, list[Mapping[str, Any]]] = {}
    for replica in replicas:
        by_role.setdefault(replica["role"], []).append(replica)
    if not by_role:
        return None
    return {role: {load: _worst(load, pool) for load in LOADS} for role, pool in by_role.items()}


def _worst(load: str, pool: list[Mapping[str, Any]]) -> float | None:
    values = [replica[load] for replica in pool]
    total = sum(values)
    return max(values) * len(values) / total if total else None
