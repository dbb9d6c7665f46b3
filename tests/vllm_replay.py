"""Replay what vLLM's own scheduler did, step by step: `python3 -m tests.vllm_replay DIR [DIR...]`.

Every trace in the folders is run on the engine that users run (`--engine reference`: on the textbook), with its limits
from the trace's `config` and its rules from the trace's `vllm` version, and compared key by key. Exit code 0 when all
are identical, 1 when some differ, 2 when a folder or a file cannot be read or stands for rules that servesim lacks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servesim.errors import InputError
from servesim.workload.requests import Requests
from servesim.workload.workload import Workload
from tests.vllm_traces import EMPTY, KEYS, Trace, read_traces

ENGINES = {
    "servesim": ("servesim.engine.engine", "Engine"),
    "reference": ("tests.reference", "Reference"),
}


@dataclass(slots=True, frozen=True, kw_only=True)
class Difference:
    """The first place where the engine and vLLM part."""

    step: int
    key: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"step {self.step}: {self.key} is {plain(self.actual)}, vLLM has {plain(self.expected)}"


class UnitCost:
    """Every step that schedules something takes one second, so that time counts steps."""

    def decode(self, sequences: int, context_tokens: int) -> float:
        return 1.0

    def step(self, sequences: int, context_tokens: int, chunks: Any) -> float:
        return 1.0


class StepClock(Workload):
    """Requests that arrive at a step's number instead of at a time.

    It hears of every step and so knows the number of the next one. An empty step counts but takes no time: what is due
    later comes one second earlier then. Idle seconds count as steps that nobody sees.
    """

    __slots__ = ("_arrival_steps", "_at_s", "_order", "_taken", "_woken_s", "next_step")

    def __init__(self, requests: Requests, arrival_steps: list[int]) -> None:
        super().__init__(requests, reactive=True, duration_s=None)
        self._arrival_steps = arrival_steps
        self._order = sorted(range(len(arrival_steps)), key=arrival_steps.__getitem__)
        self._taken = 0
        self.next_step = 0
        self._at_s = 0.0  # when the next step will start, if it follows at once
        self._woken_s = math.inf

    def next_due(self) -> float:
        if self._taken == len(self._order):
            return math.inf
        steps_to_go = self._arrival_steps[self._order[self._taken]] - self.next_step
        return min(self._at_s + max(steps_to_go, 0), self._woken_s)

    def take(self, now: float) -> list[int]:
        self._woken_s = math.inf
        if self.next_due() <= now:
            self.next_step += round(now - self._at_s)  # idle steps
            self._at_s = now
        taken = []
        while self.next_due() <= now:
            index = self._order[self._taken]
            self.requests.arrival_s[index] = now
            self._taken += 1
            taken.append(index)
        return taken

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        self._woken_s = at  # the step that let it go may prove to be empty: ask again before the next one
        return False

    def withheld(self) -> Iterable[int]:
        return ()

    def step_is_over(self, scheduled: bool) -> int:
        """Hear that a step is over; return its number."""
        number = self.next_step
        self.next_step += 1
        if scheduled:
            self._at_s += 1.0
        return number


class _PartedError(Exception):
    """Stops an engine at the first step that differs: what comes after it means nothing."""


def replay(trace: Trace, engine_class: Callable[..., Any]) -> Difference | None:
    """Run a trace's scenario; return the first difference, or None."""
    workload = StepClock(trace.requests, trace.arrival_steps)
    recorded = iter(trace.steps)
    difference: Difference | None = None

    def observe(step: dict[str, Any]) -> None:
        nonlocal difference
        number = workload.step_is_over(bool(step["scheduled"]))
        expected = next(recorded, None)
        if expected is None:
            difference = Difference(step=number, key="step", expected=None, actual=number)
        else:
            difference = compare(expected, {**step, "step": number}, trace)
        if difference is not None:
            raise _PartedError

    engine = engine_class(trace.config, UnitCost(), workload, observer=observe)
    try:
        engine.advance() if hasattr(engine, "advance") else engine.run()
    except _PartedError:
        return difference
    missing = next(recorded, None)
    if missing is not None:
        return Difference(step=missing["step"], key="step", expected=missing["step"], actual=None)
    return None


def compare(expected: dict[str, Any], actual: dict[str, Any], trace: Trace) -> Difference | None:
    for key in KEYS:
        want, have = expected[key], actual.get(key, EMPTY.get(key, []))
        if key == "prefix" and not trace.prefix_of_resumed:
            want, have = ({i: v for i, v in d.items() if i not in expected["resumed"]} for d in (want, have))
        # The order of `scheduled` counts: it is the order of scheduling. That of `prefix` is in `admitted`.
        same = list(want.items()) == list(have.items()) if key == "scheduled" else want == have
        if not same:
            return Difference(
                step=expected["step"], key=key, expected=named(want, trace.ids), actual=named(have, trace.ids)
            )
    return None


def named(value: Any, ids: list[str]) -> Any:
    if isinstance(value, dict):
        return {ids[index]: amount for index, amount in value.items()}
    if isinstance(value, list):
        return [ids[index] for index in value]
    return value


def plain(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value)


def outcome_of(trace: Trace, engine_class: Callable[..., Any]) -> str | None:
    """Return what to print of a scenario that is not identical; an engine that breaks is not either."""
    try:
        difference = replay(trace, engine_class)
    except Exception as error:
        return f"the engine raised {type(error).__name__}: {error}"
    return None if difference is None else str(difference)


def engine_class_named(name: str) -> Callable[..., Any]:
    module, attribute = ENGINES[name]
    engine: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return engine


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.vllm_replay", description=__doc__, allow_abbrev=False)
    parser.add_argument("folders", nargs="+", metavar="DIR", type=Path)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="servesim")
    options = parser.parse_args(arguments)
    engine_class = engine_class_named(options.engine)
    try:
        traces = [(folder, trace) for folder in options.folders for trace in read_traces(folder)]
    except InputError as error:
        print(f"vllm_replay: {error}", file=sys.stderr)
        return 2
    differences = [(folder / trace.name, outcome_of(trace, engine_class)) for folder, trace in traces]
    for name, difference in differences:
        if difference is not None:
            print(f"{name}: {difference}")
    identical, total = sum(difference is None for _, difference in differences), len(differences)
    print(f"{identical} of {total} scenarios identical")
    return 0 if identical == total else 1


if __name__ == "__main__":
    sys.exit(main())
