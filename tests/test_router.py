"""Every router by itself, on replicas that are nothing but loads."""

from __future__ import annotations

import random
import unittest
from types import SimpleNamespace
from typing import Any

from servesim.fleet.router import ROUTERS
from servesim.workload.requests import Requests


class Loaded(SimpleNamespace):
    """A replica as routers see it."""

    def __init__(self, number: int) -> None:
        super().__init__(number=number, in_flight=0, last_sent=0, accepts=True, used=0.0, when_changed=None)

    def kv_fraction(self) -> float:
        return float(self.used)

    def load(self, in_flight: int, last_sent: int) -> None:
        self.in_flight, self.last_sent = in_flight, last_sent
        if self.when_changed is not None:
            self.when_changed(self)


def router_of(name: str, replicas: list[Any], requests: Requests | None = None, seed: int = 7) -> Any:
    return ROUTERS[name](replicas, Requests() if requests is None else requests, seed)


class Routers(unittest.TestCase):
    def test_round_robin_takes_one_after_the_other(self) -> None:
        router = router_of("round-robin", [Loaded(n) for n in range(3)])
        self.assertEqual([router.choose(i).number for i in range(7)], [0, 1, 2, 0, 1, 2, 0])

    def test_random_depends_on_the_seed_alone_and_reaches_all(self) -> None:
        replicas = [Loaded(n) for n in range(4)]

        def drawn(seed: int) -> list[int]:
            router = router_of("random", replicas, seed=seed)
            return [router.choose(i).number for i in range(400)]

        self.assertEqual(drawn(7), drawn(7))
        self.assertNotEqual(drawn(7), drawn(8))
        for number in range(4):
            self.assertAlmostEqual(drawn(7).count(number), 100, delta=40)

    def test_least_loaded_takes_the_minimum_whatever_happens_between(self) -> None:
        rng = random.Random(1)
        everyone = [Loaded(n) for n in range(12)]
        replicas: list[Any] = everyone[:6]
        router = router_of("least-loaded", replicas)
        for counter in range(1, 4000):
            chosen = router.choose(0)
            self.assertIs(chosen, min(replicas, key=lambda r: (r.in_flight, r.last_sent)))
            chosen.load(chosen.in_flight + 1, counter)
            for replica in rng.sample(everyone, 2):
                replica.load(max(0, replica.in_flight - 1), replica.last_sent)
            if rng.random() < 0.02:  # a fleet that grows and shrinks
                replicas[:] = sorted(rng.sample(everyone, rng.randint(1, 12)), key=lambda r: r.number)

    def test_least_kv_takes_the_emptiest_cache_then_the_fewest_requests(self) -> None:
        replicas = [Loaded(n) for n in range(3)]
        router = router_of("least-kv", replicas)
        self.assertTrue(router.looks_inside)
        replicas[0].used, replicas[1].used, replicas[2].used = 0.5, 0.25, 0.25
        replicas[1].in_flight = 3
        self.assertEqual(router.choose(0).number, 2)
        replicas[2].used = 0.3
        self.assertEqual(router.choose(0).number, 1)

    def test_prefix_goes_where_the_same_content_went(self) -> None:
        requests = Requests()
        requests.content = [((0, 64),), ((1, 64),), ((0, 64), (5, 99)), (), ((1, 64), (6, 99)), ((6, 99),)]
        replicas = [Loaded(n) for n in range(3)]
        router = router_of("prefix", replicas, requests)
        replica_of = []
        for index in range(6):
            chosen = router.choose(index)
            chosen.load(chosen.in_flight + 1, index + 1)
            replica_of.append(chosen.number)
        self.assertEqual(replica_of, [0, 1, 0, 2, 1, 1])

    def test_prefix_leaves_a_replica_that_accepts_nothing_more(self) -> None:
        requests = Requests()
        requests.content = [((0, 64),), ((0, 64),)]
        replicas = [Loaded(n) for n in range(2)]
        router = router_of("prefix", replicas, requests)
        first = router.choose(0)
        first.accepts = False
        first.load(1, 1)
        self.assertIsNot(router.choose(1), first)

    def test_every_router_says_what_it_does(self) -> None:
        for name, router in ROUTERS.items():
            self.assertTrue(router.about, name)  # type: ignore[attr-defined]


if __name__ == "__main__":
    unittest.main()
