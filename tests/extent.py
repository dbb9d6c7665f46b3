"""How far a run of the tests goes, in one place.

`SERVESIM_SEEDS=5000` digs deeper into every property test. `SERVESIM_TESTS=again` is `.ci/run`'s second look by another
interpreter: a tenth of the seeds, and without the tests whose answer no interpreter's version could change.
"""

from __future__ import annotations

import os
import unittest

AGAIN = os.environ.get("SERVESIM_TESTS") == "again"

same_on_every_interpreter = unittest.skipIf(AGAIN, "run once, by the default interpreter: it would say the same again")
"""For documents, pages, statistics and the machine's own speed."""


def seeds(count: int) -> range:
    """Return the seeds of a property test that takes `count` of them unless told otherwise."""
    asked = os.environ.get("SERVESIM_SEEDS")
    return range(int(asked) if asked else max(1, count // 10) if AGAIN else count)
