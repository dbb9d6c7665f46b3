"""The requests of one class as a run of their own, and how evenly classes are served.

A part of a run shares everything with it but the outcomes: requests of other classes were never offered. So whatever is
defined of a run is defined of a class, by the same words; parts add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace

from servesim.errors import InputError
from servesim.runs.records import Outcome, Run
from servesim.summary.latency import Completed
from servesim.summary.slo import Slo
from servesim.units import suggest
from servesim.workload.requests import Requests


def class_names(run: Run) -> list[str | None]:
    """Return the classes of a run's requests in order of their first request, None where some have none; empty if
    none has one."""
    names = run.requests.class_names
    return [] if names is None else list(dict.fromkeys(names))


def check_classes(requests: Requests, slos: Iterable[Slo]) -> None:
    """Raise `InputError` for an objective of a class that no request has."""
    names = set(requests.class_names or ()) - {None}
    for slo in slos:
        if slo.class_name is not None and slo.class_name not in names:
            if not names:
                raise InputError(f"slo of class {slo.class_name!r}, but no request has a class; give --classes")
            raise suggest("class", slo.class_name, [name for name in names if name is not None])


def part(run: Run, name: str | None) -> Run:
    """Return the requests of class `name` as a run; of another class, they were never offered."""
    requests, records = copy(run.requests), copy(run.records)
    columns = zip(requests.class_names or (), records.outcome, strict=True)
    records.outcome = bytearray(outcome if own == name else Outcome.WITHHELD for own, outcome in columns)
    records.attempts = {index: sends for index, sends in records.attempts.items() if _offered(records.outcome[index])}
    records.reason = {index: reason for index, reason in records.reason.items() if _offered(records.outcome[index])}
    requests.class_names = None
    return replace(run, requests=requests, records=records, warmup=None, warnings=[], violations=[])


def _offered(outcome: int) -> bool:
    return outcome != Outcome.WITHHELD


def normalized_latency_s(run: Run) -> float | None:
    """Return the mean over completed requests of E2E by output tokens, in seconds (Kwon et al., vLLM, SOSP 2023)."""
    done = Completed(run)
    rows = zip(done.e2e(), done.column(run.records.output_tokens), strict=True)
    values = [e2e_s / tokens for e2e_s, tokens in rows if tokens and e2e_s == e2e_s]
    return sum(values) / len(values) if values else None


def jain(values: Iterable[float | None]) -> float | None:
    """Return Jain's index of fairness of positive figures: 1 if all are equal, 1/n if one has everything.

    Jain, Chiu, Hawe, "A quantitative measure of fairness", DEC TR-301, 1984. None for no value.

    >>> jain([2.0, 2.0]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    known: Sequence[float] = [value for value in values if value is not None]
    squares = sum(value * value for value in known)
    return sum(known) ** 2 / (len(known) * squares) if squares else None
