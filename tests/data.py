"""The measurements of real servers, read where they are and never copied: SERVESIM_DATA names their folder."""

from __future__ import annotations

import os
import sys
import unittest

FOLDER = os.environ.get("SERVESIM_DATA", "")

REASON = "SERVESIM_DATA is not set: it names the folder of the measurements of real servers"


def needs_data(case: type[unittest.TestCase]) -> type[unittest.TestCase]:
    """Skip a test case, and say so, unless the measurements are at hand."""
    if FOLDER:
        return case
    print(f"{case.__module__}.{case.__name__} is skipped: {REASON}", file=sys.stderr)
    return unittest.skip(REASON)(case)
