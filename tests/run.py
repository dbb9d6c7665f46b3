"""Run the tests over all cores and print counts that a machine can read: `python3 -m tests`.

`python3 -m tests [--jobs N] [--slowest N] [MODULE ...]`. The last line is `N passed, N failed, N skipped`, from
the runner's own counts: one test method counts once, however many subtests of it fail. `tests/extent.py` says what a
run takes in and what it leaves to `.ci/run`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import multiprocessing
import os
import pkgutil
import sys
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

import servesim

ROOT = Path(__file__).resolve().parent.parent


_LONG = "cli_loadgen cli_simulate oracle engine autoscale cli_plan readme outputs"
LONGEST = {f"tests.test_{name}" for name in _LONG.split()}
"""Modules that begin first, so that no core is idle at the end for one of them."""

Took = tuple[float, float, str]
"""What one test took: seconds of CPU, its processes' included, seconds of the clock, and its name."""


def cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


@dataclass
class Outcome:
    """What became of one module's tests."""

    module: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    trouble: list[str] = field(default_factory=list)
    times: list[Took] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


class CountingResult(unittest.TestResult):
    """Counts test methods by their end: a test with any failed subtest is one failure."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        self.bad: set[str] = set()
        self.trouble: list[str] = []
        self.times: list[Took] = []
        self._started = 0.0, 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self._started = cpu_s(), time.perf_counter()

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        cpu, clock = self._started
        self.times.append((cpu_s() - cpu, time.perf_counter() - clock, test.id()))

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self.passed += 1

    def addExpectedFailure(self, test, err) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self.passed += 1

    def _note(self, test: unittest.TestCase, text: str) -> None:
        self.bad.add(test.id())
        self.trouble.append(f"FAIL {test.id()}\n{text}")

    def addError(self, test, err) -> None:  # noqa: N802
        super().addError(test, err)
        self._note(test, self.errors[-1][1])

    def addFailure(self, test, err) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._note(test, self.failures[-1][1])

    def addSubTest(self, test, subtest, err) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.bad.add(test.id())
            self.trouble.append(f"FAIL {subtest.id()}\n{''.join(traceback.format_exception(*err))}")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        self._note(test, "unexpected success\n")


def run_module(name: str) -> Outcome:
    """Run one test module in this process."""
    try:
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))
    except unittest.SkipTest as error:
        return Outcome(name, skipped=1, reasons=[str(error)])
    except Exception:
        return Outcome(name, failed=1, trouble=[f"FAIL {name} (import)\n{traceback.format_exc()}"])
    result = CountingResult()
    suite.run(result)
    reasons = [reason for _, reason in result.skipped]
    return Outcome(name, result.passed, len(result.bad), len(reasons), result.trouble, result.times, reasons)


def run_into(name: str, pipe: Connection) -> None:
    gc.set_threshold(50_000, 20, 50)  # the usual one costs an eighth of the time
    pipe.send(run_module(name))


def run_apart(modules: list[str], jobs: int) -> Iterator[Outcome]:
    """Run each module in a process of its own, so that none sees another's state, and `jobs` of them at a time.

    The processes are forks of this one, which has imported the package: that is a tenth of a second less a module.
    """
    for module in pkgutil.walk_packages(servesim.__path__, "servesim."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()
    fork = multiprocessing.get_context("fork")
    waiting, running = sorted(modules, key=lambda name: name in LONGEST), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            here, there = fork.Pipe(duplex=False)
            process = fork.Process(target=run_into, args=(name, there))
            process.start()
            there.close()
            running[here] = name, process
        for pipe in wait(list(running)):
            name, process = running.pop(pipe)
            try:
                yield pipe.recv()
            except EOFError:
                process.join()
                yield Outcome(name, failed=1, trouble=[f"FAIL {name} (ended with code {process.exitcode})"])
            process.join()


def keep_bytecode() -> None:
    """Keep compiled modules in .cache, for this process and the commands that tests start."""
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(ROOT / ".cache" / "pycache")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="tests.test_units, ... (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="also list the N dearest tests, by CPU")
    options = parser.parse_args()
    keep_bytecode()
    modules = options.modules or sorted(f"tests.{path.stem}" for path in (ROOT / "tests").glob("test_*.py"))
    passed = failed = skipped = 0
    times: list[Took] = []
    reasons: Counter[str] = Counter()
    for outcome in run_apart(modules, max(1, options.jobs)):
        passed, failed, skipped = passed + outcome.passed, failed + outcome.failed, skipped + outcome.skipped
        times += outcome.times
        reasons.update(outcome.reasons)
        for text in outcome.trouble:
            print(text)
        if outcome.failed:
            print(f"{outcome.module}: {outcome.failed} failed", flush=True)
    for cpu, clock, test in sorted(times, reverse=True)[: options.slowest]:
        print(f"{cpu:7.2f} s of CPU {clock:7.2f} s  {test}")
    for reason, count in reasons.most_common():
        print(f"{count} skipped: {reason}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
