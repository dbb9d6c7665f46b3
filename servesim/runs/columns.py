"""One request of a saved run, key by key: the table that its writer, its reader and its JSON Schema share.

Most of it is declared where the columns are, in `Requests` and in `Records`; here they are put in the order of a line,
with what follows from a request's place in its run. Knows no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from servesim.runs.records import RECORD_COLUMNS, Outcome, Run
from servesim.workload.requests import REQUEST_COLUMNS, TRAITS, Column


@dataclass(frozen=True, slots=True)
class Kind:
    """What the values of a column are: `json` as the JSON Schema has it, `write` from a run's value to a line's."""

    json: Any
    write: Callable[[Run, Any], Any] = lambda _, value: value


def known(value: float) -> float | None:
    """Return a number, None for NaN, which stands for an unknown one in a column."""
    return value if value == value else None


OUTCOMES = {
    outcome.name.lower(): outcome
    for outcome in (Outcome.COMPLETED, Outcome.FAILED, Outcome.REJECTED, Outcome.UNFINISHED)
}
"""Those of the requests that are in a file: what was withheld was never offered."""

KINDS = {
    "count": Kind("integer"),
    "known count": Kind("integer|null", lambda _, value: None if value < 0 else value),
    "integer": Kind("integer"),
    "number": Kind("number"),
    "seconds": Kind("number|null", lambda _, value: known(value)),
    "token": Kind("number|null", lambda run, at: None if at < 0 else run.times[at]),
    "text": Kind("text"),
    "outcome": Kind(tuple(OUTCOMES), lambda _, code: Outcome(code).name.lower()),
    "flag": Kind("flag"),
    "object": Kind("object"),
    "content": Kind([["integer"]]),
    "pauses": Kind([["number|null"]], lambda _, pauses: [[at, known(resumed)] for at, resumed in pauses]),
    "slices": Kind([["integer: first and last step of a stretch of its tokens"]]),
    "times": Kind(["number: of a token event"]),
}
"""Each kind of value that a column can have."""

RECORDS = tuple(each for each in RECORD_COLUMNS if not each.optional)
RARE = tuple(each for each in RECORD_COLUMNS if each.optional)
ASKED = tuple(
    replace(each, key=f"asked_{each.key}")
    for each in REQUEST_COLUMNS
    if each.name in ("prompt_tokens", "output_tokens")
)
ARRIVAL = Column(
    name="arrival_s", key="arrival_s", kind="seconds", about="in the trace, where it differs from planned_s"
)


def _of_fleet(kind: str, typecode: str, absent: float, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, key=name, kind=kind, typecode=typecode, absent=absent) for name in names)


REPLICA = _of_fleet("count", "i", 0, "replica")
REPLICA_PAIR = _of_fleet("count", "i", 0, "prefill_replica", "decode_replica")
STAGES = _of_fleet("seconds", "d", float("nan"), "prefill_end_s", "link_start_s", "transfer_end_s", "decode_start_s")
TOKENS = (
    Column(name="slices", key="steps", kind="slices"),
    Column(name="", key="times_s", kind="times"),
    Column(name="visible", key="visible", kind="known count", about="the first event with visible content"),
)

LINE = (
    Column(name="", key="index", kind="count"),
    Column(name="ids", key="id", kind="text"),
    *(*RECORDS, *ASKED),
    *(replace(each, optional=True) for each in (*RARE, ARRIVAL, *TRAITS, *REPLICA, *REPLICA_PAIR, *STAGES, *TOKENS)),
)
"""Every key of a request in the order in which it is written; what is optional may be left out."""

REQUIRED = tuple(each.key for each in LINE if not each.optional)
