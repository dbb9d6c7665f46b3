"""Meet service objectives at the least cost: which server, with which limits, and how many of them.

1. Every candidate is searched under the first seed (`edge`), but for those that cannot do: too little memory, or an
   objective that a single request misses already. The bound is reported.
2. The finalists (the cheapest, the cheapest of each device, whatever the search's 5 % cannot tell from the best) are
   searched under all seeds (`refine`): the rate that counts is the lowest over the seeds, with a 95 % interval of the
   mean (Student's t). A pruned candidate's cost is bounded below by its first failing rate.
3. Each finalist is run with room to spare (`at`): lower load or more replicas. What no other beats in both cost and
   latency is the front.
4. The cheapest is run again on seeds that nothing was chosen by. If more than half of them miss, it gets one step more
   room and the choice is made anew.

With a rate to serve, each replica is searched alone under its even share of a Poisson stream, as a router that chooses
at random would give it; the choice is then run once as a fleet behind the default router. Which rows are still to be
computed follows from those that are there, so a plan can be cut anywhere, spread over machines, and put together in any
order. `plan_body` makes of a planner the body of the JSON document: every candidate, the front, the choice and how to
start it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from servesim.config.build import Server, build_server
from servesim.config.server_flags import command_lines
from servesim.diagnose.rules import REMEDIES
from servesim.plan.space import Candidate
from servesim.plan.trial import AT, EDGE, FLEET, REFINE, RESOLUTION, Question, Row, Unit
from servesim.stats import STUDENT_T_97_5

SPARE = (1.0, 0.75, 0.5)  # of the highest rate: the loads at which a finalist is shown
MORE_REPLICAS = (0, 1, 2)
LARGEST_FLEET = 64  # replicas that are run together, as a check
CHEAPEST, MOST_FINALISTS = 3, 6
STEPS_BACK = 6  # at most so many steps of more room for one candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpec:
    """What is asked: the choices, the workload they meet, the objectives, and the rate to serve if there is one."""

    candidates: tuple[Candidate, ...]
    question: Question
    rate: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict)  # an hour of one device; empty: count devices
    seeds: int = 3
    fresh_seeds: int = 3

    def units_of_edges(self) -> list[Unit]:
        """Return the first stage, which is known beforehand: what `--shard` divides."""
        return [Unit(kind=EDGE, candidate=each, seed=self.question.workload.seed) for each in self.candidates]

    def search_seeds(self) -> list[int]:
        # A trace is the same under every seed.
        first = self.question.workload.seed
        return [first] if self.question.workload.trace is not None else list(range(first, first + self.seeds))

    def unused_seeds(self) -> list[int]:
        if self.question.workload.trace is not None:
            return []
        first = self.question.workload.seed + self.seeds
        return list(range(first, first + self.fresh_seeds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A candidate at a load: `replicas` units, each at `rate` requests a second."""

    candidate: Candidate
    replicas: int
    rate: float
    cost: float


class Planner:
    """Turns rows into a plan, or into the units that are still missing for it."""

    def __init__(self, spec: PlanSpec, rows: Sequence[Row] = ()) -> None:
        self.spec = spec
        self.rows: dict[str, Row] = {row["unit"]: row for row in rows}
        self.interrupted = False  # what there is is reported, and nothing chosen
        self._seed = spec.question.workload.seed

    def add(self, row: Row) -> None:
        self.rows[row["unit"]] = row

    def missing(self) -> list[Unit]:
        """Return what must be computed next; empty when the plan is complete."""
        for stage in self._stages():
            lacking = [unit for unit in stage if unit.id not in self.rows]
            if lacking:
                return list({unit.id: unit for unit in lacking}.values())
        return []

    def _stages(self) -> Iterator[list[Unit]]:
        yield self.spec.units_of_edges()
        finalists = self.finalists()
        yield [self._refinement(each, seed) for each in finalists for seed in self.spec.search_seeds()]
        if self.spec.rate is not None:
            for _ in range(STEPS_BACK):  # one replica less, while its load lies between met and missed
                yield [unit for each in finalists for unit in self._fewer(each)]
        yield [self._at(offer, self._seed) for each in finalists for offer in self.offers(each)]
        for _ in range(STEPS_BACK * len(finalists)):
            chosen = self.chosen()
            if chosen is None:
                return
            yield [self._at(chosen, seed) for seed in self.spec.unused_seeds()]
        yield [unit for unit in [self.fleet_unit()] if unit is not None]

    # What the rows say

    def edge(self, candidate: Candidate) -> Row:
        return self.rows[Unit(kind=EDGE, candidate=candidate, seed=self._seed).id]

    def searched(self) -> list[Candidate]:
        """Return the candidates whose first search is there: all but those of an interrupted plan."""
        units = self.spec.units_of_edges()
        return [unit.candidate for unit in units if unit.id in self.rows]

    def possible(self) -> list[Candidate]:
        """Return the candidates that sustain some rate, the cheapest first by their first search."""
        found = [each for each in self.searched() if self.edge(each)["rate"]]
        return sorted(found, key=lambda each: (self.cost(each, self.edge(each)["rate"]), each.devices))

    def finalists(self) -> list[Candidate]:
        ranked = self._distinct(self.possible())
        if self.interrupted or not ranked:
            return []
        worst_best = self.cost(ranked[0], self.edge(ranked[0])["rate"])
        chosen = ranked[:CHEAPEST] + [each for each in ranked if self._least_cost(each) < worst_best]
        for device in dict.fromkeys(each.server.hardware for each in ranked):
            chosen.append(next(each for each in ranked if each.server.hardware == device))
        return list(dict.fromkeys(chosen))[:MOST_FINALISTS]

    def _distinct(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        """Leave out each that did exactly as one before it on the same devices: a knob that changes nothing here."""
        seen: dict[Any, Candidate] = {}
        for each in ranked:
            edge = self.edge(each)
            slos = tuple(result["value_ms"] for result in edge["at"]["slo"])
            seen.setdefault((each.server.hardware, each.devices, edge["rate"], edge["next_rate"], slos), each)
        return list(seen.values())

    def equals(self, candidate: Candidate) -> list[Candidate]:
        """Return the candidates that did exactly as `candidate`, itself included."""
        return [each for each in self.possible() if self._distinct([candidate, each]) == [candidate]]

    def _least_cost(self, candidate: Candidate) -> float:
        """Return what a candidate costs at least: at the first rate that missed."""
        edge = self.edge(candidate)
        return self.cost(candidate, edge["next_rate"] or edge["rate"])

    def rates(self, candidate: Candidate) -> list[float]:
        """Return the highest rate under each seed; 0 where there is none."""
        rows = (self.rows[self._refinement(candidate, seed).id] for seed in self.spec.search_seeds())
        return [row["rate"] or 0.0 for row in rows]

    def cost(self, candidate: Candidate, rate: float) -> float:
        """Return the cost at `rate` a unit: an hour of all replicas; without a rate to serve, a million requests."""
        hour = candidate.devices * self.spec.prices.get(candidate.server.hardware, 1.0)
        return hour * replicas_for(self.spec.rate, rate) if self.spec.rate else hour / 3600 / rate * 1e6

    def offers(self, candidate: Candidate) -> list[Offer]:
        """Return a finalist at its full load and with room to spare."""
        rate = min(self.rates(candidate))
        if not rate:
            return []
        if self.spec.rate is None:
            loads = [(1, rate * (1 - RESOLUTION[EDGE]) ** self.steps_back(candidate) * share) for share in SPARE]
        else:
            least = self._least_replicas(candidate) + self.steps_back(candidate)
            loads = [(least + more, self.spec.rate / (least + more)) for more in MORE_REPLICAS]
        return [
            Offer(candidate=candidate, replicas=count, rate=rate, cost=self._offer_cost(candidate, count, rate))
            for count, rate in loads
        ]

    def _offer_cost(self, candidate: Candidate, replicas: int, rate: float) -> float:
        hour = candidate.devices * self.spec.prices.get(candidate.server.hardware, 1.0)
        return hour * replicas if self.spec.rate else hour / 3600 / rate * 1e6

    def chosen(self) -> Offer | None:
        """Return the cheapest offer at full load; of equals that of fewest devices, then the lowest latency."""
        full = [offers[0] for each in self.finalists() if (offers := self.offers(each))]
        return min(full, key=lambda offer: (offer.cost, offer.candidate.devices, self._share(offer)), default=None)

    def confirmed(self, offer: Offer) -> list[Row] | None:
        """Return the rows of `offer` on fresh seeds, None while some are missing."""
        rows = [self.rows.get(self._at(offer, seed).id) for seed in self.spec.unused_seeds()]
        return None if None in rows else [row for row in rows if row is not None]

    def fleet_unit(self) -> Unit | None:
        """Return the run of the choice as a fleet behind a router, where there is more than one replica."""
        chosen = self.chosen()
        if self.spec.rate is None or chosen is None or not 1 < chosen.replicas <= LARGEST_FLEET:
            return None
        if chosen.candidate.fleet.disagg is not None:
            return None
        seed = (self.spec.unused_seeds() or self.spec.search_seeds())[0]
        return Unit(kind=FLEET, candidate=chosen.candidate, seed=seed, rate=self.spec.rate, replicas=chosen.replicas)

    def front(self) -> list[Offer]:
        """Return the offers that meet the objectives and that no other beats in both cost and latency."""
        offers = [offer for each in self.finalists() for offer in self.offers(each) if self._meets(offer)]
        offers.sort(key=lambda offer: (offer.cost, self._share(offer)))
        front: list[Offer] = []
        for offer in offers:
            if not front or self._share(offer) < self._share(front[-1]):
                front.append(offer)
        return front

    def at(self, offer: Offer) -> dict[str, Any] | None:
        """Return the figures of an offer under the first seed, where they are there."""
        row = self.rows.get(self._at(offer, self._seed).id)
        return None if row is None else row["at"]

    def _share(self, offer: Offer) -> float:
        at = self.at(offer) or {}
        return math.inf if at.get("share_of_limit") is None else at["share_of_limit"]

    def _meets(self, offer: Offer) -> bool:
        return bool((self.at(offer) or {}).get("met"))

    def steps_back(self, candidate: Candidate) -> int:
        """Return how much more room a candidate was given because fresh seeds missed."""
        steps = 0
        while steps < STEPS_BACK:
            rate = min(self.rates(candidate)) * (1 - RESOLUTION[EDGE]) ** steps
            if self.spec.rate is not None:
                rate = self.spec.rate / (self._least_replicas(candidate) + steps)
            units = [Unit(kind=AT, candidate=candidate, seed=seed, rate=rate) for seed in self.spec.unused_seeds()]
            answers = [self.rows[unit.id]["at"]["met"] for unit in units if unit.id in self.rows]
            if len(answers) < len(units) or not answers or 2 * sum(answers) >= len(answers):
                return steps
            steps += 1
        return steps

    def _fewer(self, candidate: Candidate) -> list[Unit]:
        """Return the runs that tell whether one replica less would do, where the searches leave it open."""
        assert self.spec.rate is not None
        if not min(self.rates(candidate)):
            return []
        fewer = self._least_replicas(candidate) - 1
        missed = [self.rows[self._refinement(candidate, seed).id]["next_rate"] for seed in self.spec.search_seeds()]
        if fewer < 1 or any(rate is not None and self.spec.rate / fewer >= rate for rate in missed):
            return []
        return self._full_runs(candidate, fewer)

    def _full_runs(self, candidate: Candidate, replicas: int) -> list[Unit]:
        assert self.spec.rate is not None
        rate = self.spec.rate / replicas
        return [Unit(kind=AT, candidate=candidate, seed=seed, rate=rate) for seed in self.spec.search_seeds()]

    def _least_replicas(self, candidate: Candidate) -> int:
        """Return the least replicas that every seed is known to be content with."""
        assert self.spec.rate is not None
        count = replicas_for(self.spec.rate, min(self.rates(candidate)))
        while count > 1:
            rows = [self.rows.get(unit.id) for unit in self._full_runs(candidate, count - 1)]
            if not all(row is not None and row["at"]["met"] for row in rows):
                break
            count -= 1
        return count

    def _refinement(self, candidate: Candidate, seed: int) -> Unit:
        return Unit(kind=REFINE, candidate=candidate, seed=seed, rate=self.edge(candidate)["rate"])

    @staticmethod
    def _at(offer: Offer, seed: int) -> Unit:
        return Unit(kind=AT, candidate=offer.candidate, seed=seed, rate=offer.rate)


def replicas_for(rate: float, each: float) -> int:
    """Return how many units serve `rate` at `each` requests a second.

    >>> replicas_for(100.0, 12.5), replicas_for(100.0, 12.4)
    (8, 9)
    """
    return max(1, math.ceil(rate / each - 1e-9))


def interval_95(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of independent `values`, None for fewer than two.

    >>> [round(end, 2) for end in interval_95([10.0, 11.0, 12.0])]
    [8.52, 13.48]
    """
    if len(values) < 2:
        return None
    t = STUDENT_T_97_5.get(len(values) - 1, 2.0)
    half = t * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


# The document


def plan_body(planner: Planner) -> dict[str, Any]:
    """Return the body of the document of a plan of which every row is there, or which was interrupted."""
    spec = planner.spec
    finalists, front, chosen = planner.finalists(), planner.front(), planner.chosen()
    workload = spec.question.workload
    return {
        "workload": {
            "requests": workload.requests,
            "prompt_tokens": workload.prompt_tokens,
            "output_tokens": workload.output_tokens,
            "trace": workload.trace,
        },
        "slo": [
            {"name": slo.name, "metric": slo.metric, "percentile": slo.percentile, "limit_ms": slo.limit_s * 1000}
            for slo in spec.question.slos
        ],
        "rate": spec.rate,
        "cost_unit": _cost_unit(planner),
        "search_seeds": spec.search_seeds(),
        "fresh_seeds": spec.unused_seeds(),
        "candidates": [_candidate(planner, each, finalists) for each in planner.searched()],
        "front": [_offer(planner, offer) for offer in front],
        "chosen": None if chosen is None else _chosen(planner, chosen),
        "next": [] if chosen is None else _next_steps(planner, chosen, front),
        "runs": _runs(planner),
    }


def _cost_unit(planner: Planner) -> str:
    what = "price" if planner.spec.prices else "devices"
    if planner.spec.rate is not None:
        return f"{what} per hour" if planner.spec.prices else what
    return f"{what} per million requests" if planner.spec.prices else "device-hours per million requests"


def _candidate(planner: Planner, candidate: Candidate, finalists: list[Candidate]) -> dict[str, Any]:
    edge = planner.edge(candidate)
    rates = planner.rates(candidate) if candidate in finalists else None
    interval = interval_95(rates) if rates else None
    offers = planner.offers(candidate) if rates else []
    cost = planner.cost(candidate, edge["rate"]) if edge["rate"] else None
    return {
        "key": candidate.key,
        **candidate.describe(),
        "devices": candidate.devices,
        "estimate": edge["estimate"],
        "rate": edge["rate"] if rates is None else min(rates) or None,
        "next_rate": edge.get("next_rate"),
        "rates": rates,
        "interval": None if interval is None else {"low": interval[0], "high": interval[1]},
        "cost": offers[0].cost if offers else cost,
        "steps_back": planner.steps_back(candidate) if offers else 0,
        "finalist": candidate in finalists,
        "same_as": _same_as(planner, candidate),
        "cut": edge["impossible"] or _left_out(planner, candidate, finalists),
        "too_short": edge.get("too_short", False),
        "missed": edge.get("missed"),
        "binds": edge.get("binds"),
        "at": edge.get("at"),
    }


def _same_as(planner: Planner, candidate: Candidate) -> str | None:
    """Return the key of the first candidate that did exactly the same, None for itself."""
    if not planner.edge(candidate)["rate"]:
        return None
    first = planner.equals(candidate)[0]
    return None if first == candidate else first.key


def _left_out(planner: Planner, candidate: Candidate, finalists: list[Candidate]) -> str | None:
    """Return the bound by which a candidate was not searched any further."""
    if candidate in finalists:
        return None
    edge = planner.edge(candidate)
    if edge["next_rate"] is None:
        return "not among the cheapest"
    least = planner.cost(candidate, edge["next_rate"])
    return f"misses at {edge['next_rate']:.4g} requests/s, so costs {least:,.2f} or more"


def _offer(planner: Planner, offer: Offer) -> dict[str, Any]:
    return {
        "key": offer.candidate.key,
        **offer.candidate.describe(),
        "replicas": offer.replicas,
        "devices": offer.replicas * offer.candidate.devices,
        "rate": offer.rate,
        "cost": offer.cost,
        "at": planner.at(offer),
    }


def _chosen(planner: Planner, offer: Offer) -> dict[str, Any]:
    candidate = offer.candidate
    server = build_server(candidate.server)
    rates = planner.rates(candidate)
    interval = interval_95(rates)
    fresh = planner.confirmed(offer) or []
    fleet_unit = planner.fleet_unit()
    fleet = None if fleet_unit is None else planner.rows.get(fleet_unit.id)
    return {
        **_offer(planner, offer),
        "limits": _limits(server),
        "rates": rates,
        "interval": None if interval is None else {"low": interval[0], "high": interval[1]},
        "binds": planner.edge(candidate).get("binds"),
        "fresh": [{"seed": row["seed"], "met": row["at"]["met"], "at": row["at"]} for row in fresh],
        "steps_back": planner.steps_back(candidate),
        "fleet": None if fleet is None else {"router": fleet["router"], "at": fleet["at"]},
        "flags": command_lines(server, disaggregated=candidate.fleet.disagg is not None),
    }


def _limits(server: Server) -> dict[str, Any]:
    config = server.config
    return {
        "num_blocks": config.num_blocks,
        "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "prefix_caching": config.prefix_caching,
    }


def _next_steps(planner: Planner, chosen: Offer, front: list[Offer]) -> list[dict[str, Any]]:
    """Return what would have to change for lower latency, for more load on one server, and for more of what binds."""
    steps: list[dict[str, Any]] = []
    share = (planner.at(chosen) or {}).get("share_of_limit")
    faster = [o for o in front if share is not None and (planner.at(o) or {})["share_of_limit"] < share]
    if faster:
        steps.append({"for": "lower latency", **_offer(planner, faster[0])})
    rate = min(planner.rates(chosen.candidate))
    larger = [each for each in planner.possible() if planner.edge(each)["rate"] > 1.05 * rate]
    if larger:
        edge = planner.edge(larger[0])
        steps.append(
            {
                "for": "more load on one unit",
                **larger[0].describe(),
                "devices": larger[0].devices,
                "rate": edge["rate"],
                "cost": planner.cost(larger[0], edge["rate"]),
            }
        )
    if planner.spec.rate is not None:
        steps.append(
            {
                "for": "more load",
                "up_to": chosen.replicas * rate,
                "then": f"{chosen.replicas + 1} replicas, up to {(chosen.replicas + 1) * rate:.4g} requests/s",
            }
        )
    binds = planner.edge(chosen.candidate).get("binds")
    if binds is not None and binds["budget"] in REMEDIES:
        remedy = REMEDIES[binds["budget"]]
        steps.append({"for": f"more {binds['budget']}", "change": remedy.change, "knobs": remedy.knobs()})
    return steps


def _runs(planner: Planner) -> int:
    return sum(len(row.get("probes", ())) or row["kind"] == "at" for row in planner.rows.values())
