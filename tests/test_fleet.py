"""Replicas in one virtual time: one is an engine, many lose nobody, and no way of driving them changes anything."""

from __future__ import annotations

import math
import random
import unittest
from array import array
from dataclasses import replace

from servesim.catalog.hardware import load_hardware
from servesim.catalog.models import load_model
from servesim.config.engine import EngineConfig
from servesim.cost.model import CostModel
from servesim.cost.roofline import Roofline
from servesim.engine.engine import Engine
from servesim.errors import InputError, RunError
from servesim.fleet.fleet import Fleet, Kind
from servesim.fleet.replica import Replica
from servesim.fleet.router import ROUTERS
from servesim.runs.records import Outcome, Run
from servesim.summary.summary import summarize
from servesim.workload.requests import Requests
from servesim.workload.workload import Delayed, OpenLoop, Workload
from tests.case import Case, Row, StepCost
from tests.extent import seeds
from tests.fleet_cases import difference, engine_run, fleet_run, kind_of, random_fleet
from tests.random_cases import random_case


def rows_of(size: int, seed: int, rate: float, output: int = 20) -> tuple[Row, ...]:
    rng = random.Random(seed)
    now, rows = 0.0, []
    for _ in range(size):
        now += rng.expovariate(rate)
        rows.append(Row(now, rng.randint(1, 60), rng.randint(1, output)))
    return tuple(rows)


class OneReplica(unittest.TestCase):
    def test_is_the_engine_under_every_router_and_load(self) -> None:
        for seed in (*seeds(60), 155, 169, 397):  # the last ones once were not
            case = random_case(seed)
            want = engine_run(case)
            for router in ROUTERS:
                with self.subTest(seed=seed, router=router):
                    self.assertIsNone(difference(want, fleet_run(case, [kind_of(case)], router)))

    def test_behind_a_host_that_delays_is_the_engine_behind_it(self) -> None:
        case = Case(seed=0, config=EngineConfig(num_blocks=20), rows=rows_of(30, 1, 0.5), unit_steps=False)
        engine = Engine(case.config, case.cost(), Delayed(case.workload(), 0.7))
        engine.advance()
        for router in ("round-robin", "least-kv"):
            fleet = Fleet(Delayed(case.workload(), 0.7), [kind_of(case)], router=router)
            fleet.advance()
            self.assertIsNone(difference(engine.run(), fleet.run()))


class ManyReplicas(unittest.TestCase):
    def test_lose_no_request_and_break_no_law(self) -> None:
        for seed in (*seeds(120), 231, 252):  # the last ones once did
            case, kinds, router = random_fleet(seed)
            with self.subTest(seed=seed):
                run = fleet_run(case, kinds, router)
                self.assertEqual(run.violations, [])
                counts = summarize(run).requests
                over = counts.completed + counts.failed + counts.rejected + counts.unfinished
                self.assertEqual(counts.offered, over)
                for index, outcome in enumerate(run.records.outcome):
                    if outcome == Outcome.COMPLETED and not case.config.spec_tokens:
                        self.assertEqual(len(run.token_times(index)), run.records.output_tokens[index])

    def test_advance_in_slices_as_at_one_go(self) -> None:
        for seed in seeds(60):
            case, kinds, router = random_fleet(seed)
            rng = random.Random(seed)
            slices = sorted(rng.uniform(0.0, 60.0) * (1.0 if case.unit_steps else 0.05) for _ in range(9))
            with self.subTest(seed=seed, router=router):
                whole, sliced = fleet_run(case, kinds, router), fleet_run(case, kinds, router, slices)
                self.assertIsNone(difference(whole, sliced))
                self.assertEqual(whole.replicas, sliced.replicas)

    def test_each_figure_of_the_fleet_is_the_sum_of_its_replicas(self) -> None:
        case = Case(seed=0, config=EngineConfig(num_blocks=40), rows=rows_of(80, 3, 2.0), unit_steps=False)
        run = fleet_run(case, [kind_of(case, 4)], "least-loaded")
        assert run.engine is not None
        self.assertEqual(sum(replica.requests for replica in run.replicas), 80)
        self.assertEqual(sum(replica.steps for replica in run.replicas), run.engine.steps)
        self.assertEqual(sum(replica.preemptions for replica in run.replicas), run.engine.preemptions)
        self.assertEqual(
            [replica.requests for replica in run.replicas], [list(run.replica_of["replica"]).count(n) for n in range(4)]
        )
        spread = summarize(run).imbalance
        assert spread is not None
        self.assertEqual(spread["both"].requests, max(r.requests for r in run.replicas) * 4 / 80)

    def test_kinds_keep_their_own_limits(self) -> None:
        rows = tuple(Row(float(i), 10, 30) for i in range(8))
        case = Case(seed=0, config=EngineConfig(num_blocks=40), rows=rows)
        kinds = [kind_of(case, 1, "long"), kind_of(case, 1, "short", max_model_len=20)]
        run = fleet_run(case, kinds, "round-robin")
        self.assertEqual(list(run.records.output_tokens), [30, 10] * 4)
        self.assertEqual(run.records.capped, {1, 3, 5, 7})
        self.assertEqual([replica.name for replica in run.replicas], ["long", "short"])

    def test_a_horizon_leaves_the_rest_unfinished(self) -> None:
        case = Case(seed=0, config=EngineConfig(num_blocks=40), rows=rows_of(60, 5, 1.0), until_s=30.0)
        run = fleet_run(case, [kind_of(case, 2)], "least-loaded")
        counts = summarize(run).requests
        self.assertGreater(counts.unfinished, 0)
        self.assertEqual((counts.offered, run.violations), (60, []))

    def test_no_replica_is_refused(self) -> None:
        case = random_case(0)
        with self.assertRaisesRegex(InputError, "no replicas"):
            Fleet(case.workload(), [kind_of(case, 0)])
        with self.assertRaisesRegex(InputError, "did you mean 'least-loaded'"):
            Fleet(case.workload(), [kind_of(case)], router="least-load")


class Fed(Workload):
    """What the brute-force driver has sent to one engine."""

    def __init__(self, requests: Requests, finished: list[float]) -> None:
        super().__init__(requests, reactive=True, duration_s=None)
        self.due: list[tuple[float, int]] = []
        self.ended = finished

    def next_due(self) -> float:
        return self.due[0][0] if self.due else math.inf

    def take(self, now: float) -> list[int]:
        taken = [index for due, index in self.due if due <= now]
        del self.due[: len(taken)]
        return taken

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        self.ended.append(at)
        return False

    def withheld(self) -> tuple[int, ...]:
        return ()


def brute_homes(case: Case, count: int, cost: CostModel) -> list[int]:
    """Step all engines to every arrival and send it to the one with the fewest requests in flight."""
    requests = case.workload().requests
    ended: list[list[float]] = [[] for _ in range(count)]
    feeds = [Fed(requests, ended[number]) for number in range(count)]
    engines = [Engine(case.config, cost, feed) for feed in feeds]
    sent, last_sent, replica_of = [0] * count, [0] * count, []
    for index, at in enumerate(requests.arrival_s):
        for engine in engines:
            engine.advance(at)
        in_flight = [sent[n] - sum(end <= at for end in ended[n]) for n in range(count)]
        home = min(range(count), key=lambda n: (in_flight[n], last_sent[n], n))
        sent[home] += 1
        last_sent[home] = index + 1
        feeds[home].due.append((at, index))
        engines[home].workload_changed()
        replica_of.append(home)
    return replica_of


class LeastLoaded(unittest.TestCase):
    def test_sends_where_a_driver_sends_that_steps_all_engines_to_every_arrival(self) -> None:
        for seed in seeds(60):
            rng = random.Random(seed)
            config = EngineConfig(
                num_blocks=rng.choice((8, 20, 200)),
                max_num_seqs=rng.choice((1, 3, 64)),
                max_num_batched_tokens=rng.choice((64, 256)),
                prefix_caching=rng.random() < 0.3,
            )
            rows = rows_of(rng.randint(1, 60), seed, rng.choice((0.2, 1.0, 5.0)))
            unit_steps = rng.random() < 0.5
            if unit_steps:  # events meet at the same instant
                rows = tuple(replace(row, arrival_s=float(round(row.arrival_s))) for row in rows)
            case = Case(seed=seed, config=config, rows=rows, unit_steps=unit_steps)
            cost: CostModel = case.cost()
            if rng.random() < 0.6:  # the cost model that says how soon a request can be over
                cost = Roofline(load_model("llama-3.1-8b"), load_hardware("cpu-4vcpu"))
            kind = Kind(name="one", config=config, cost=cost, count=rng.randint(1, 5))
            with self.subTest(seed=seed):
                fleet = Fleet(case.workload(), [kind], router="least-loaded")
                fleet.advance()
                self.assertEqual(list(fleet.replica_of), brute_homes(case, kind.count, cost))


class NoHang(unittest.TestCase):
    def test_a_fleet_that_turns_in_a_circle_names_a_request(self) -> None:
        class Circle(Fleet):
            def receive(self, index: int) -> None:
                super().receive(index)
                self.again(self.now)

            def again(self, at: float) -> None:
                self.at(at, self.again, at)

        case = Case(seed=0, config=EngineConfig(num_blocks=10), rows=(Row(1.0, 10, 5),))
        with self.assertRaisesRegex(RunError, "request 0 on replica 0 .one. gets no further.* still 1 s"):
            Circle(case.workload(), [kind_of(case)], router="least-loaded").advance()

    def test_an_engine_that_does_not_move_is_found_out(self) -> None:
        case = Case(seed=0, config=EngineConfig(num_blocks=10), rows=(Row(1.0, 10, 5),))
        fleet = Fleet(case.workload(), [kind_of(case)], router="least-loaded")
        fleet.replicas[0].engine.advance = lambda until=math.inf: None  # type: ignore[method-assign]
        with self.assertRaisesRegex(RunError, "events, and the time is still"):
            fleet.advance()

    def test_many_events_at_one_instant_are_no_circle(self) -> None:
        requests = Requests()
        requests.prompt_tokens = array("q", [1]) * 30_000
        requests.output_tokens = array("q", [1]) * 30_000
        requests.arrival_s = array("d", [0.0]) * 30_000
        kind = Kind(name="one", config=EngineConfig(num_blocks=10_000), cost=StepCost(True), count=3)
        fleet = Fleet(OpenLoop(requests), [kind], router="least-loaded")
        fleet.advance()
        self.assertEqual(fleet.run().records.outcome.count(Outcome.COMPLETED), 30_000)


class Mailboxes(unittest.TestCase):
    def test_count_what_is_in_flight_as_a_client_sees_it(self) -> None:
        case = Case(seed=0, config=EngineConfig(num_blocks=10), rows=(Row(0.0, 5, 4), Row(2.0, 5, 4), Row(6.0, 5, 1)))
        fleet = Fleet(case.workload(), [kind_of(case, 1)], router="least-loaded")
        seen = []
        for until in (0.5, 3.0, 4.5, 5.5, 6.5, math.inf):
            fleet.advance(until)
            replica: Replica = fleet.replicas[0]
            seen.append(replica.in_flight)
        self.assertEqual(seen, [1, 2, 1, 1, 1, 0])
        run: Run = fleet.run()
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 3)


if __name__ == "__main__":
    unittest.main()
