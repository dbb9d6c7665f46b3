"""How far a run of the tests goes: the one place that says it.

| `SERVESIM_TESTS` | tests                                    | seeds   | who runs it                          |
|------------------|------------------------------------------|---------|--------------------------------------|
| (not set)        | all but those marked `in_full`           | a fifth | everybody: the README's command      |
| `full`           | all                                      | all     | `.ci/run`, on the same interpreter   |
| `again`          | all but those marked `in_full` or `once` | a tenth | `.ci/run`, on the other interpreters |

A test is marked `in_full` if it takes seconds of CPU and another test of the same room would find most of what it
finds; `once` if no version of the interpreter could change its answer. `SERVESIM_SEEDS=5000` digs deeper in any.
`SERVESIM_DATA` names the folder of the measurements of real servers, which are read where they are and never copied:
without it the tests that need them are skipped and say so.
"""

from __future__ import annotations

import os
import sys
import unittest

EXTENTS = {"": 5, "full": 1, "again": 10}
"""The part of its seeds that a property test takes: one in so many."""

EXTENT = os.environ.get("SERVESIM_TESTS", "")
if EXTENT not in EXTENTS:
    raise SystemExit(f"SERVESIM_TESTS is {EXTENT!r}, must be full, again or not set")

in_full = unittest.skipUnless(EXTENT == "full", "left to .ci/run: SERVESIM_TESTS=full runs it")
"""For what takes seconds: documents, whole grids, statistics of many runs."""

once = unittest.skipIf(EXTENT == "again", "run once, by the default interpreter: it would say the same again")
"""For pages, statistics and sources."""


def seeds(count: int) -> range:
    """Return the seeds of a property test: `count` of them in full, fewer otherwise, as many as were asked for."""
    asked = os.environ.get("SERVESIM_SEEDS")
    return range(int(asked) if asked else max(1, count // EXTENTS[EXTENT]))


DATA = os.environ.get("SERVESIM_DATA", "")


def needs_data(case: type[unittest.TestCase]) -> type[unittest.TestCase]:
    """Skip a test case, and say so, unless the measurements are at hand."""
    if DATA:
        return case
    reason = "SERVESIM_DATA is not set: it names the folder of the measurements of real servers"
    print(f"{case.__module__}.{case.__name__} is skipped: {reason}", file=sys.stderr)
    return unittest.skip(reason)(case)
