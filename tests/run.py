"""Run the tests over several processes and print counts that a machine can read.

`python3 -m tests.run [--jobs N] [--slowest N] [MODULE ...]`. The last line is `N passed, N failed, N skipped`, from
the runner's own counts: one test method counts once, however many subtests of it fail.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
import unittest
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Outcome:
    """What became of one module's tests."""

    module: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    trouble: list[str] = field(default_factory=list)
    times: list[list[object]] = field(default_factory=list)


class CountingResult(unittest.TestResult):
    """Counts test methods by their end: a test with any failed subtest is one failure."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[str] = set()
        self.trouble: list[str] = []
        self.times: list[list[object]] = []
        self._started = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self._started = time.perf_counter()

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        self.times.append([time.perf_counter() - self._started, test.id()])

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
    outcome, start = Outcome(name), time.perf_counter()
    try:
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))
    except unittest.SkipTest:
        outcome.skipped = 1
        return outcome
    except Exception:
        outcome.failed, outcome.trouble = 1, [f"FAIL {name} (import)\n{traceback.format_exc()}"]
        return outcome
    result = CountingResult()
    suite.run(result)
    outcome.failed, outcome.skipped = len(result.bad), len(result.skipped)
    outcome.passed = max(0, result.testsRun - len({i for i in result.bad if "(" not in i}) - len(result.skipped))
    outcome.trouble, outcome.times = result.trouble, result.times
    outcome.seconds = time.perf_counter() - start
    return outcome


def run_apart(name: str) -> Outcome:
    """Run one test module in an interpreter of its own, so that none sees another's state."""
    command = [sys.executable, "-m", "tests.run", "--worker", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    try:
        return Outcome(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        trouble = f"FAIL {name} (ended with code {done.returncode})\n{done.stdout}{done.stderr}"
        return Outcome(name, failed=1, trouble=[trouble])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="tests.test_units, ... (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="also list the slowest N tests")
    parser.add_argument("--worker", metavar="MODULE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        outcome = run_module(options.worker)
        print("\n" + json.dumps(asdict(outcome)))
        return 0
    modules = options.modules or sorted(f"tests.{path.stem}" for path in (ROOT / "tests").glob("test_*.py"))
    passed = failed = skipped = 0
    times: list[list[object]] = []
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for future in as_completed([pool.submit(run_apart, module) for module in modules]):
            outcome = future.result()
            passed, failed, skipped = passed + outcome.passed, failed + outcome.failed, skipped + outcome.skipped
            times += outcome.times
            for text in outcome.trouble:
                print(text)
            if outcome.failed:
                print(f"{outcome.module}: {outcome.failed} failed", flush=True)
    for seconds, test in sorted(times, reverse=True)[: options.slowest]:
        print(f"{seconds:7.2f} s  {test}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
