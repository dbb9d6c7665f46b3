"""Fleets over random cases: what the tests of fleets, routers and disaggregation drive, and how they compare runs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from servesim.config.fleet import LINK_SCOPES, TRANSFER_OVERLAPS
from servesim.engine.engine import Engine
from servesim.fleet.disaggregation import Disaggregation, Link
from servesim.fleet.fleet import Fleet, Kind
from servesim.fleet.router import ROUTERS
from servesim.runs.records import Records, Run
from servesim.summary.summary import summarize
from tests.case import Case
from tests.random_cases import random_case

KV_BYTES = 10


def kind_of(case: Case, count: int = 1, name: str = "one", **limits: Any) -> Kind:
    return Kind(name=name, config=replace(case.config, **limits), cost=case.cost(), count=count)


def engine_run(case: Case) -> Run:
    engine = Engine(case.config, case.cost(), case.workload())
    engine.advance(case.until_s)
    return engine.run()


def fleet_run(case: Case, kinds: Sequence[Kind], router: str, slices: Sequence[float] = ()) -> Run:
    fleet = Fleet(case.workload(), kinds, router=router)
    return advanced(fleet, case, slices)


def advanced(fleet: Fleet, case: Case, slices: Sequence[float] = ()) -> Run:
    for until in slices:
        if until < case.until_s:
            fleet.advance(until)
    fleet.advance(case.until_s)
    return fleet.run()


def random_fleet(seed: int) -> tuple[Case, list[Kind], str]:
    """Draw a case that several replicas serve, of one or two kinds."""
    rng = random.Random(f"fleet {seed}")
    case = random_case(seed)
    kinds = [kind_of(case, rng.randint(1, 3))]
    if rng.random() < 0.4:
        kinds.append(kind_of(case, rng.randint(1, 2), "other", num_blocks=case.config.num_blocks + rng.randint(0, 9)))
    return case, kinds, rng.choice(list(ROUTERS))


def random_disaggregation(seed: int) -> tuple[Case, Disaggregation]:
    """Draw a case that prefill and decode engines serve apart. Its clock goes by ones, or by odd fractions."""
    rng = random.Random(f"apart {seed}")
    case = random_case(seed)
    second = 1.0 if case.unit_steps else 0.05
    prefill = [kind_of(case, rng.randint(1, 2), "prefill")]
    decode = [
        kind_of(case, rng.randint(1, 2), "decode", num_blocks=max(1, case.config.num_blocks + rng.randint(-3, 3)))
    ]
    if rng.random() < 0.3:
        decode.append(kind_of(case, 1, "other", num_blocks=case.config.num_blocks + 5, prefix_caching=False))
    link = Link(
        bytes_per_s=rng.choice((5.0, 100.0, 1000.0, math.inf)) * KV_BYTES / second,
        latency_s=rng.choice((0.0, 0.0, 1.0, 0.3)) * second,
        scope=rng.choice(list(LINK_SCOPES)),
        overlap=rng.choice(list(TRANSFER_OVERLAPS)),
    )
    router = rng.choice(list(ROUTERS))
    layers = rng.choice((1, 4, 32))
    return case, Disaggregation(
        case.workload(), prefill, decode, link, kv_bytes_per_token=KV_BYTES, layers=layers, router=router
    )


def difference(want: Run, have: Run) -> str | None:
    """Return what two runs do not have alike, None if they are the same run."""
    for name in Records.__slots__:
        if _shown(getattr(want.records, name)) != _shown(getattr(have.records, name)):
            return f"records.{name}: {getattr(want.records, name)} and {getattr(have.records, name)}"
    if want.times != have.times or want.steps != have.steps:
        return "the step logs differ"
    if want.engine != have.engine:
        return f"totals: {want.engine} and {have.engine}"
    return None if summarize(want).as_dict() == summarize(have).as_dict() else "the summaries differ"


def _shown(column: Any) -> str:
    """Return a column as text, in which NaN is like NaN and a mapping has no order."""
    return repr(sorted(column.items()) if isinstance(column, dict) else column)
