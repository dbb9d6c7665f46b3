"""Throw bad input at everything that reads: `python3 -m tests.fuzz [--seconds N] [--seed N] [--target NAME]`.

Case number N of a target is the same on every machine: `--seed N --cases 1 --target NAME` makes it again. Every fault
found is minimised and kept in `fixtures/faults/`, where the tests find it (`tests/test_fuzz.py`) until for ever.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.command import ROOT
from tests.fuzz_commands import COMMANDS
from tests.fuzz_inputs import minimise, minimise_words
from tests.fuzz_targets import READ, FaultError, Target

TARGETS: dict[str, Target] = {**READ, **COMMANDS}
FAULTS = ROOT / "fixtures" / "faults"
LONGEST_S = 10  # of CPU
MEMORY_BYTES = 3 * 2**30


class TooSlowError(BaseException):
    """A case took more CPU than any may; no handler of errors catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooSlowError in what takes more CPU, or far longer by the clock: a busy machine is no fault."""

    def ring(*_: object) -> None:
        raise TooSlowError

    timers = (signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, 30 * seconds)
    before = [signal.signal(number, ring) for _, number, _ in timers]
    for timer, _, limit_s in timers:
        signal.setitimer(timer, limit_s)
    try:
        yield
    finally:
        for (timer, number, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def fault_of(target: Target, data: bytes) -> str | None:
    """Return what went wrong with an input and where, None if nothing did."""
    try:
        with time_limit(LONGEST_S):
            target.run(data)
    except target.may:
        return None
    except TooSlowError:
        return "too slow"
    except FaultError as error:
        return f"FaultError: {error}"[:80]
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(last.filename).name}, {last.name}"
    return None


def case(name: str, number: int) -> bytes:
    """Return input `number` of a target."""
    target = TARGETS[name]
    return target.make(random.Random(f"{name} {number}"), target.seeds())


def smallest(target: Target, data: bytes, fault: str) -> bytes:
    """Return the smallest part of `data` found that has the same fault."""
    if fault == "too slow":
        return data
    if target.words:
        words = minimise_words(json.loads(data), lambda less: fault_of(target, json.dumps(less).encode()) == fault)
        return json.dumps(words).encode()
    return minimise(data, lambda less: fault_of(target, less) == fault)


def keep(name: str, number: int, fault: str, data: bytes) -> Path:
    """Write a fault to the folder that the tests read."""
    FAULTS.mkdir(exist_ok=True)
    path = FAULTS / f"{name}-{hashlib.sha256(fault.encode()).hexdigest()[:8]}.json"
    kept = {"target": name, "seed": number, "fault": fault, "input": data.decode("latin-1")}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long (default: 180)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case (default: 0)")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="at most so many of each target")
    parser.add_argument("--target", choices=TARGETS, nargs="+", default=list(TARGETS), help="default: all of them")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    end, number = time.monotonic() + options.seconds, options.seed
    known: set[tuple[str, str]] = set()
    while time.monotonic() < end and number < options.seed + options.cases:
        for name in options.target:
            data = case(name, number)
            fault = fault_of(TARGETS[name], data)
            if fault is None or (name, fault) in known:
                continue
            known.add((name, fault))
            path = keep(name, number, fault, smallest(TARGETS[name], data, fault))
            print(f"{name} {number}: {fault}: {path.relative_to(ROOT)}", flush=True)
        number += 1
    print(f"{number - options.seed} cases of {len(options.target)} targets, {len(known)} faults")
    return int(bool(known))


if __name__ == "__main__":
    sys.exit(main())
