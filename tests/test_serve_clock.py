"""The engine on a wall clock that the test winds: the same run as in virtual time, and nothing left behind."""

from __future__ import annotations

import math
import random
import unittest
from array import array
from typing import Any

from servesim.config.build import Server, build_server
from servesim.config.server import ServerSpec
from servesim.engine.engine import Engine
from servesim.serve.engine_clock import EngineClock
from servesim.serve.generation import EndedStep, Generation, StepTokens
from servesim.serve.tokenizer import Prefixes
from servesim.workload.requests import Requests
from servesim.workload.workload import ClosedLoop, OpenLoop, Workload
from tests.extent import seeds

SMALL: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "kv_tokens": 1600, "prefix_caching": False}


class Ledger:
    """Counts what the clock says."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self.over: list[tuple[Generation, str]] = []

    def on_step(self, step: EndedStep, tokens: StepTokens, lateness_s: float) -> None:
        self.steps += 1
        self.tokens += tokens.count

    def on_over(self, generation: Generation, reason: str, now: float) -> None:
        self.over.append((generation, reason))


class Bench:
    """A clock, and clients that read from it: the wall time is `now` and moves to whatever is due next."""

    def __init__(self, server: Server, *, speed: float = 1.0, settle_s: float = 0.0, rows: int = 512) -> None:
        self.now = 100.0
        self.ledger = Ledger()
        self.clock = EngineClock(
            server, self.ledger, speed=speed, settle_s=settle_s, read_clock=lambda: self.now, rows=rows
        )
        self.connections: dict[int, int] = {}  # by `id` of a generation, of those whose clients ask again at once
        self.token_times: dict[int, list[float]] = {}  # by `id` of a generation, on the engine's clock

    def generation(self, prompt: int, output: int) -> Generation:
        generation = Generation(number=0, prompt=prompt, target=output, arrived_s=self.now)
        generation.reader = self
        self.token_times[id(generation)] = []
        return generation

    def receive(self, generation: Generation, first: int) -> None:
        times = self.token_times[id(generation)]
        times += [self.clock.last.end_s] * (generation.made - first)
        if generation.over and id(generation) in self.connections:
            self.clock.awaited.add(self.connections[id(generation)])

    def turn(self) -> bool:
        """Move to what is due and do it; False if nothing is."""
        due_s = self.clock.due_s
        if due_s == math.inf:
            return False
        self.now = max(self.now, due_s)
        self.clock.hand_out(self.now)
        self.clock.decide(self.now)
        return True

    def finish(self) -> None:
        while self.turn():
            pass


def columns(lengths: list[tuple[int, int]], arrivals: list[float] | None = None) -> Requests:
    requests = Requests()
    requests.prompt_tokens.extend(prompt for prompt, _ in lengths)
    requests.output_tokens.extend(output for _, output in lengths)
    requests.arrival_s = array("d", arrivals or [math.nan] * len(lengths))
    return requests


def simulated(server: Server, workload: Workload) -> list[list[float]]:
    engine = Engine(server.config, server.cost(), workload)
    engine.advance()
    run = engine.run()
    assert not run.violations, run.violations
    return [run.token_times(index) for index in range(len(run.requests))]


class SameRun(unittest.TestCase):
    def lengths(self, seed: int, count: int = 40) -> list[tuple[int, int]]:
        draw = random.Random(seed)
        return [(draw.randint(1, 300), draw.randint(1, 60)) for _ in range(count)]

    def assert_times(self, got: list[list[float]], want: list[list[float]], offset: float = 0.0) -> None:
        for mine, theirs in zip(got, want, strict=True):
            self.assertEqual(len(mine), len(theirs))
            for one, other in zip(mine, theirs, strict=True):
                self.assertAlmostEqual(one, other + offset, places=6)

    def test_open_arrivals_have_their_tokens_when_the_simulator_says(self) -> None:
        for seed in range(12):
            for extra in ({}, {"async_scheduling": True}, {"long_prefill_token_threshold": 64}, {"policy": "sjf"}):
                server = build_server(ServerSpec(**(SMALL | extra)))
                draw = random.Random(seed)
                lengths = self.lengths(seed)
                arrivals = sorted(draw.uniform(0, 0.5) for _ in lengths)
                bench = Bench(server, speed=draw.choice((0.5, 1.0, 20.0)))
                made: list[Generation] = []
                for arrival, (prompt, output) in zip(arrivals, lengths, strict=True):
                    at = bench.clock.to_wall(arrival)
                    while bench.clock.due_s <= at:
                        bench.turn()
                    bench.now = max(bench.now, at)
                    generation = bench.generation(prompt, output)
                    generation.arrived_s = at
                    bench.clock.submit(generation)
                    made.append(generation)
                bench.finish()
                want = simulated(server, OpenLoop(columns(lengths, arrivals)))
                with self.subTest(seed=seed, extra=extra):
                    self.assert_times([bench.token_times[id(each)] for each in made], want)
                    self.assertEqual(bench.clock.engine.pool.free, server.config.num_blocks)

    def test_a_closed_loop_that_answers_within_the_settling_time_is_the_simulators(self) -> None:
        for seed in range(12):
            server = build_server(ServerSpec(**SMALL))
            lengths = self.lengths(seed)
            concurrency = random.Random(seed).randint(2, 12)
            got = closed_loop(Bench(server, settle_s=1.0), lengths, concurrency)
            want = simulated(server, ClosedLoop(columns(lengths), concurrency))
            with self.subTest(seed=seed):
                self.assert_times(got, want)


def closed_loop(bench: Bench, lengths: list[tuple[int, int]], concurrency: int) -> list[list[float]]:
    """Run requests of `lengths` from clients that ask again half a millisecond after their answers."""
    waiting = list(range(len(lengths)))
    made: dict[int, Generation] = {}

    def ask(connection: int) -> None:
        index = waiting.pop(0)
        made[index] = generation = bench.generation(*lengths[index])
        bench.connections[id(generation)] = connection
        bench.clock.submit(generation, follows=connection)
        bench.clock.awaited.discard(connection)

    for connection in range(concurrency):
        ask(connection)
    while bench.turn():
        ended = [generation for generation, _ in bench.ledger.over]
        bench.ledger.over.clear()
        if bench.clock.engine.is_busy:
            bench.now += 0.0005  # less than half a step
        for generation in ended:
            if waiting:
                ask(bench.connections[id(generation)])
    return [bench.token_times[id(made[index])] for index in range(len(lengths))]


class Cancelling(unittest.TestCase):
    def test_blocks_are_free_before_the_next_step_whoever_leaves_when(self) -> None:
        for seed in seeds(60):
            draw = random.Random(seed)
            options = SMALL | {"async_scheduling": draw.random() < 0.5, "prefix_caching": draw.random() < 0.5}
            if draw.random() < 0.3:
                options["policy"] = "priority"
            server = build_server(ServerSpec(**options))
            bench = Bench(server, rows=64)
            clock = bench.clock
            prefixes = Prefixes(server.config.block_size)
            alive: list[Generation] = []
            self.assertTrue(clock.idle)
            for _ in range(400):
                if draw.random() < 0.3 and len(alive) < 40:
                    prompt = draw.randint(1, 300)
                    generation = bench.generation(prompt, draw.randint(1, 40))
                    generation.priority = draw.randint(0, 2)
                    numbers = array("I", [draw.choice((1, 1, 1, draw.randint(1, 9)))] * prompt)
                    generation.content, _ = prefixes.content(numbers)
                    clock.submit(generation)
                    alive.append(generation)
                if alive and draw.random() < 0.2:
                    gone = alive.pop(draw.randrange(len(alive)))
                    held = clock.engine.pool.used
                    clock.cancel(gone, bench.now)
                    clock.cancel(gone, bench.now)
                    self.assertLessEqual(clock.engine.pool.used, held)
                bench.turn()
                alive = [generation for generation in alive if not generation.over]
            bench.finish()
            with self.subTest(seed=seed):
                self.assertTrue(clock.idle)
                self.assertEqual(clock.engine.pool.free, server.config.num_blocks)
                self.assertEqual(clock.workload.free_rows, 64)
                self.assertEqual(clock._watch.queued_tokens, 0)
                self.assertEqual((clock.last.running, clock.last.waiting), (0, 0))
                self.assertFalse(any((clock.engine.records.slices, clock.engine.records.preempted)))

    def test_nobody_who_left_is_given_a_token(self) -> None:
        bench = Bench(build_server(ServerSpec(**SMALL)))
        generation = bench.generation(20, 10)
        bench.clock.submit(generation)
        bench.turn()
        bench.clock.cancel(generation, bench.now)
        bench.finish()
        self.assertEqual(bench.token_times[id(generation)], [])
        self.assertEqual([reason for _, reason in bench.ledger.over], ["abort"])


class ForEver(unittest.TestCase):
    def test_forgetting_steps_changes_nothing_and_keeps_memory_flat(self) -> None:
        import servesim.serve.engine_clock as module

        kept = module.FORGET_STEPS
        lengths = [(random.Random(n).randint(1, 300), random.Random(-n).randint(1, 60)) for n in range(60)]
        times = []
        try:
            for forget in (kept, 7):
                module.FORGET_STEPS = forget
                bench = Bench(build_server(ServerSpec(**(SMALL | {"kv_tokens": 800}))))
                made = [bench.generation(*each) for each in lengths]
                for generation in made:
                    bench.clock.submit(generation)
                bench.finish()
                times.append([bench.token_times[id(each)] for each in made])
                if forget == 7:
                    self.assertLessEqual(len(bench.clock.engine.log), 8)
                    self.assertGreater(bench.clock.engine.totals.preemptions, 0)
        finally:
            module.FORGET_STEPS = kept
        self.assertEqual(times[0], times[1])

    def test_prefixes_are_forgotten_with_their_blocks(self) -> None:
        server = build_server(ServerSpec(**(SMALL | {"prefix_caching": True})))
        bench = Bench(server, rows=16)
        prefixes = Prefixes(server.config.block_size)
        prefixes._many_nodes = 500
        draw = random.Random(1)
        for _ in range(300):
            generation = bench.generation(200, 3)
            numbers = array("I", [draw.getrandbits(16) for _ in range(200)])
            generation.content, _ = prefixes.content(numbers)
            bench.clock.submit(generation)
            bench.finish()
            if prefixes.crowded:
                alive = bench.clock.engine.pool.depths_alive()
                prefixes.forget(alive, bench.clock.streams_in_use())  # type: ignore[arg-type]
                self.assertLessEqual(len(prefixes), server.config.num_blocks)
                prefixes._many_nodes = 500
        self.assertLess(len(prefixes), 520)


class Lateness(unittest.TestCase):
    def test_a_late_turn_delays_its_tokens_but_not_the_next_step(self) -> None:
        bench = Bench(build_server(ServerSpec(**SMALL)))
        generation = bench.generation(20, 10)
        bench.clock.submit(generation)
        bench.turn()
        bench.now = bench.clock.due_s + 0.004  # asleep
        self.assertTrue(bench.clock.hand_out(bench.now))
        bench.clock.decide(bench.now)
        first = generation.first_s
        bench.finish()
        ideal = bench.clock.to_wall(bench.token_times[id(generation)][-1])
        self.assertAlmostEqual(first, bench.clock.to_wall(bench.token_times[id(generation)][0]) + 0.004)
        self.assertAlmostEqual(generation.last_s, ideal)

    def test_what_cannot_be_caught_up_with_is_given_up(self) -> None:
        bench = Bench(build_server(ServerSpec(**SMALL)))
        first, second = bench.generation(20, 10), bench.generation(20, 10)
        bench.clock.submit(first)
        bench.turn()
        bench.now += 60.0  # the lid was closed
        second.arrived_s = bench.now - 0.001
        bench.clock.submit(second)
        bench.finish()
        self.assertTrue(first.over and second.over)
        self.assertAlmostEqual(bench.clock.slipped_s, 60.0, delta=0.1)
        self.assertLess(second.last_s - second.arrived_s, 1.0)
        self.assertLess(bench.token_times[id(second)][-1], 1.0)


if __name__ == "__main__":
    unittest.main()
