"""Where the time of a simulated run went: the same run once more, with every step's terms added up.

The run is stepped one by one, as under an observer, so that each step asks the cost model exactly once.
"""

from __future__ import annotations

import math

from servesim.cost.terms import TermWatch
from servesim.engine.engine import Engine
from servesim.engine.server import Server
from servesim.engine.simulate import arriving
from servesim.workload.workload import Workload


def watch_terms(server: Server, workload: Workload, horizon_s: float | None = None) -> TermWatch:
    """Run `workload` (which is then used up) on one `server` and return the seconds of each term of its steps."""
    watch = TermWatch(server.cost())
    engine = Engine(server.config, watch, arriving(workload, watch), observer=lambda observation: None)
    watch.reset()  # an engine may ask before it begins
    engine.advance(math.inf if horizon_s is None else horizon_s)
    return watch
