"""The oracle: run a case on an engine and on the textbook, and say in which thing they differ first."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from servesim.runs.records import EngineTotals, Run
from tests.case import Case
from tests.reference import Reference

NO_END = 1_000_000  # observed steps; a case takes some hundreds


class EndlessError(Exception):
    """An engine went on and on."""


def run_observed(
    engine_class: Callable[..., Any], case: Case, observed: bool = True
) -> tuple[list[dict[str, Any]], Run]:
    """Run a case; return every observed step and the run."""
    steps: list[dict[str, Any]] = []

    def observe(step: dict[str, Any]) -> None:
        steps.append(step)
        if len(steps) > NO_END:
            raise EndlessError(f"more than {NO_END} steps")

    engine = engine_class(case.config, case.cost(), case.workload(), observer=observe if observed else None)
    if isinstance(engine, Reference):
        return steps, engine.run(case.until_s)
    engine.advance(case.until_s)
    return steps, engine.run({}) if hasattr(engine, "run") else run_of(engine)


def run_of(engine: Any) -> Run:
    log, records = engine.log, engine.records
    requests = engine.workload.requests
    return Run("simulated", requests, records, log.end_s, {}, steps=log, engine=engine.totals)


def first_difference(case: Case, engine_class: Callable[..., Any]) -> str | None:
    """Return one sentence on the first thing in which the engine differs from the textbook, or None."""
    expected_steps, expected = run_observed(Reference, case)
    try:
        steps, run = run_observed(engine_class, case)
    except Exception:  # a crash is a difference like any other, and is made smaller like any other
        return "the engine raised\n" + traceback.format_exc(limit=-3)
    for number, (want, have) in enumerate(zip(expected_steps, steps, strict=False)):
        difference = difference_of_steps(want, have)
        if difference is not None:
            return f"observed step {number}: {difference}"
    if len(steps) != len(expected_steps):
        return f"{len(steps)} observed steps, the textbook has {len(expected_steps)}"
    difference = difference_of_runs(expected, run)
    if difference is not None:
        return difference
    try:
        _, unobserved = run_observed(engine_class, case, observed=False)
    except Exception:
        return "the engine without an observer raised\n" + traceback.format_exc(limit=-3)
    difference = difference_of_runs(expected, unobserved)
    return None if difference is None else f"without an observer: {difference}"


def difference_of_steps(want: dict[str, Any], have: dict[str, Any]) -> str | None:
    for key, value in want.items():
        other = have.get(key)
        ordered = key == "scheduled" and isinstance(other, dict)
        if value != other or (ordered and list(value) != list(other)):
            return f"{key} is {other}, the textbook has {value} (its step: {want})"
    extra = [key for key in have if key not in want]
    return f"unexpected keys {extra}" if extra else None


def difference_of_runs(want: Run, have: Run) -> str | None:
    """Compare logs and records exactly, and totals, of which integrals of floats only nearly."""
    assert want.steps is not None and want.engine is not None
    if have.steps is None or have.engine is None:
        return "the run has no step log or no totals"
    for name in ("end_s", "decodes", "prefill_tokens", "kv_blocks"):
        difference = difference_of_columns(getattr(want.steps, name), getattr(have.steps, name))
        if difference:
            return f"steps.{name}{difference}"
    difference = difference_of_columns(want.steps.durations_s(), have.steps.durations_s())
    if difference:
        return f"steps.durations_s(){difference}"
    for index in range(len(want.records)):
        difference = difference_of_rows(want, have, index)
        if difference:
            return f"request {index}: {difference}"
    gaps = gaps_of(have)
    if gaps != list(have.steps.decodes):
        return f"the gaps of records and abandoned slices are {gaps}, steps.decodes {list(have.steps.decodes)}"
    for field in fields(EngineTotals):
        if field.name == "wasted_tokens":  # law 2, which the engine checks of itself, says what they are
            continue
        expected, actual = getattr(want.engine, field.name), getattr(have.engine, field.name)
        same = (
            math.isclose(expected, actual, rel_tol=1e-9, abs_tol=1e-9) if field.type == "float" else expected == actual
        )
        if not same:
            return f"engine.{field.name} is {actual}, the textbook has {expected}"
    return None


def gaps_of(run: Run) -> list[int]:
    """Return for each step how many tokens came one step after their predecessor: `decodes`, seen from the records."""
    records = run.records
    slices = list(records.abandoned)
    for index in range(len(records)):
        slices += records.slices.get(index) or [(records.first[index], records.last[index])]
    gaps = [0] * len(run.times)
    for first, last in slices:
        for step in range(first + 1, last + 1):
            gaps[step] += 1
    return gaps


def difference_of_columns(want: Sequence[float], have: Sequence[float]) -> str | None:
    for number, (expected, actual) in enumerate(zip(want, have, strict=False)):
        if expected != actual:
            return f"[{number}] is {actual!r}, the textbook has {expected!r}"
    return None if len(want) == len(have) else f" has {len(have)} entries, the textbook has {len(want)}"


def difference_of_rows(want: Run, have: Run, index: int) -> str | None:
    theirs, ours = want.records, have.records
    if math.isnan(theirs.sent_s[index]):  # it never arrived: only that must be known
        names = ["outcome", "output_tokens"]
    else:
        names = ["outcome", "output_tokens", "planned_s", "sent_s", "admitted_s", "first", "last"]
        names += ["prompt_tokens", "cached_tokens"]
    for name in names:
        expected, actual = getattr(theirs, name)[index], getattr(ours, name)[index]
        if expected != actual and not (math.isnan(expected) and math.isnan(actual)):
            return f"{name} is {actual!r}, the textbook has {expected!r}"
    for name in ("reason", "attempts", "preempted", "slices"):
        expected, actual = getattr(theirs, name).get(index), getattr(ours, name).get(index)
        if repr(expected) != repr(actual):  # by repr, since NaN is not NaN
            return f"{name} is {actual}, the textbook has {expected}"
    if (index in theirs.capped) != (index in ours.capped):
        return f"capped is {index in ours.capped}, the textbook has {index in theirs.capped}"
    if want.token_times(index) != have.token_times(index):
        return f"token times are {have.token_times(index)}, the textbook has {want.token_times(index)}"
    return None
