"""Shared content: prefixes, the history of sessions, chains of block hashes."""

from __future__ import annotations

import json
import random
import tempfile
import unittest
from itertools import combinations
from pathlib import Path

from servesim.config.workload import WorkloadSpec, build_workload
from servesim.errors import InputError
from servesim.workload.content import BlockChains, Streams, cut, renumber
from servesim.workload.requests import OPEN_END, Content, Requests
from servesim.workload.traces.trace import Trace, read_trace


def trace_of(rows: list[dict], **options: object) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        path.write_text("".join(json.dumps({"output_tokens": 5, **row}) + "\n" for row in rows))
        return read_trace(str(path), **options)  # type: ignore[arg-type]


def contents_of(rows: list[dict]) -> list[Content]:
    requests = trace_of(rows).requests
    return requests.content or [()] * len(requests)


def identities(content: Content, tokens: int, own: object) -> list[tuple]:
    """Return what each of the first `tokens` tokens is, as `requests.py` defines it."""
    result: list[tuple] = []
    for stream, end in content:
        result += [(stream, at) for at in range(len(result), min(end, tokens))]
    return result + [(own, at) for at in range(len(result), tokens)]


def shared_tokens(first: list[tuple], second: list[tuple]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


class PrefixTest(unittest.TestCase):
    def test_equal_names_share_as_many_tokens_as_both_have(self) -> None:
        rows = [
            {"arrival_s": 0, "prompt_tokens": 100, "prefix": "a", "prefix_tokens": 64},
            {"arrival_s": 1, "prompt_tokens": 100, "prefix": "b", "prefix_tokens": 64},
            {"arrival_s": 2, "prompt_tokens": 100, "prefix": "a", "prefix_tokens": 32},
            {"arrival_s": 3, "prompt_tokens": 100, "prefix": "a", "prefix_tokens": 0},
        ]
        self.assertEqual(contents_of(rows), [((0, 64),), ((1, 64),), ((0, 32),), ()])


class HistoryTest(unittest.TestCase):
    def test_a_turn_that_holds_all_before_goes_on_in_the_same_stream(self) -> None:
        rows = [
            {"arrival_s": 0, "prompt_tokens": 20, "session": "a", "prefix": "p", "prefix_tokens": 10},
            {"prompt_tokens": 25, "session": "a"},
            {"prompt_tokens": 60, "session": "a", "prefix": "p", "prefix_tokens": 10},
        ]
        self.assertEqual(contents_of(rows), [((0, 10), (1, OPEN_END))] * 3)

    def test_a_prompt_shorter_than_the_turns_before_cuts_them_with_a_note(self) -> None:
        rows = [
            {"arrival_s": 0, "prompt_tokens": 20, "session": "a"},
            {"prompt_tokens": 22, "session": "a"},
            {"prompt_tokens": 30, "session": "a"},
            {"prompt_tokens": 8, "session": "a"},
        ]
        trace = trace_of(rows)
        self.assertEqual(
            trace.requests.content,
            [
                ((0, OPEN_END),),
                ((0, 22), (1, OPEN_END)),
                ((0, 22), (1, OPEN_END)),
                ((0, 8), (2, OPEN_END)),
            ],
        )
        self.assertEqual(
            trace.notes, ("t.jsonl: 2 turns have prompts shorter than the turns before them, whose history is cut",)
        )

    def test_a_lone_turn_shares_nothing(self) -> None:
        self.assertEqual(contents_of([{"arrival_s": 0, "prompt_tokens": 20, "session": "a"}]), [()])

    def test_another_prefix_in_a_later_turn_is_refused(self) -> None:
        rows = [
            {"arrival_s": 0, "prompt_tokens": 20, "session": "a", "prefix": "p", "prefix_tokens": 10},
            {"prompt_tokens": 40, "session": "a", "prefix": "q", "prefix_tokens": 10},
        ]
        with self.assertRaisesRegex(InputError, r"^t\.jsonl:2: prefix differs"):
            trace_of(rows)

    def test_a_first_turn_needs_its_arrival(self) -> None:
        with self.assertRaisesRegex(InputError, r"^t\.jsonl:1: arrival_s is missing on the first turn of a session"):
            trace_of([{"prompt_tokens": 20, "session": "a"}, {"prompt_tokens": 40, "session": "a"}])

    def test_sessions_of_a_trace_are_driven_as_sessions(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.jsonl"
            rows = [
                {"arrival_s": 1, "prompt_tokens": 20, "output_tokens": 5, "session": "a"},
                {"prompt_tokens": 40, "output_tokens": 5, "session": "a", "think_s": 2.5},
            ]
            path.write_text("\n".join(map(json.dumps, rows)))
            workload = build_workload(WorkloadSpec(trace=str(path)))
        self.assertEqual(list(workload.take(1.0)), [0])
        workload.finished(0, 3.0)
        self.assertEqual(workload.next_due(), 5.5)

    def test_cutting_keeps_the_head(self) -> None:
        content = ((0, 10), (1, 20), (2, OPEN_END))
        self.assertEqual(cut(content, 15), ((0, 10), (1, 15)))
        self.assertEqual(cut(content, 10), ((0, 10),))
        self.assertEqual(cut(content, 99), ((0, 10), (1, 20), (2, 99)))
        self.assertEqual(cut(content, 0), ())


class BlockChainTest(unittest.TestCase):
    def row(self, hash_ids: list[int], prompt_tokens: int, size: int = 16, at: int = 0) -> dict:
        return {"arrival_s": at, "prompt_tokens": prompt_tokens, "hash_ids": hash_ids, "hash_block_tokens": size}

    def test_a_chain_shares_its_head_and_nothing_after_the_difference(self) -> None:
        rows = [self.row([1, 2, 3, 9], 64), self.row([1, 2, 4, 9], 64), self.row([5, 2, 3], 48)]
        self.assertEqual(contents_of(rows), [((0, 32),), ((0, 32),), ()])

    def test_a_long_chain_is_one_segment(self) -> None:
        rows = [self.row(list(range(500)), 8000), self.row(list(range(500)), 7995), self.row(list(range(200)), 3200)]
        self.assertEqual(contents_of(rows), [((0, 8000),), ((0, 7995),), ((0, 3200),)])

    def test_a_chain_without_a_time_keeps_its_session(self) -> None:
        later = self.row([1, 2], 32) | {"session": "a"}
        del later["arrival_s"]
        requests = trace_of([self.row([1], 16) | {"session": "a"}, later]).requests
        self.assertEqual((requests.sessions, list(requests.turns or ())), (["a", "a"], [1, 2]))

    def test_blocks_of_another_size_are_other_blocks(self) -> None:
        self.assertEqual(contents_of([self.row([1, 2], 32), self.row([1, 2], 64, size=32)]), [(), ()])

    def test_random_chains_share_what_their_equal_heads_say(self) -> None:
        for seed in range(200):
            rng = random.Random(seed)
            chains = [[rng.randint(1, 2) for _ in range(rng.randint(0, 7))] for _ in range(rng.randint(2, 9))]
            sizes = [max(1, len(chain) * 4 - rng.choice((0, 0, 1, 3))) for chain in chains]
            interned, streams = BlockChains(), Streams()
            leaves = [interned.add(chain, 4) for chain in chains]
            contents = interned.contents(leaves, sizes, streams)
            self.assertEqual(contents, renumber(contents), "streams are numbered as requests come")
            starts: dict[int, int] = {}
            for content in contents:
                before = 0
                for stream, end in content:
                    self.assertEqual(starts.setdefault(stream, before), before, "a stream begins at one token")
                    before = end
            tokens = [
                identities(content, size, f"own {k}")
                for k, (content, size) in enumerate(zip(contents, sizes, strict=True))
            ]
            for i, j in combinations(range(len(chains)), 2):
                head = next(
                    (k for k, (a, b) in enumerate(zip(chains[i], chains[j], strict=False)) if a != b),
                    min(len(chains[i]), len(chains[j])),
                )
                expected = min(head * 4, sizes[i], sizes[j])
                with self.subTest(seed=seed, i=i, j=j):
                    self.assertEqual(shared_tokens(tokens[i], tokens[j]), expected)


class GeneratedTest(unittest.TestCase):
    def requests(self, **options: object) -> Requests:
        return build_workload(WorkloadSpec(**options)).requests  # type: ignore[arg-type]

    def test_a_shared_prefix_comes_on_top_and_changes_no_draw(self) -> None:
        plain = self.requests(rate=2.0, requests=50)
        shared = self.requests(rate=2.0, requests=50, shared_prefix_tokens=1024, prefixes=3)
        self.assertEqual([tokens + 1024 for tokens in plain.prompt_tokens], list(shared.prompt_tokens))
        self.assertEqual(plain.output_tokens, shared.output_tokens)
        self.assertEqual(plain.arrival_s, shared.arrival_s)
        assert shared.content is not None
        self.assertEqual(set(shared.content), {((k, 1024),) for k in range(3)})

    def test_each_turn_holds_the_turns_before(self) -> None:
        requests = self.requests(concurrency=4, requests=20, turns="3", think_s=1.5, shared_prefix_tokens=100)
        own = self.requests(concurrency=4, requests=20)
        history = 0
        assert requests.sessions is not None and requests.turns is not None and requests.think_s is not None
        for index, turn in enumerate(requests.turns):
            if turn == 1:
                history = 100
            self.assertEqual(requests.prompt_tokens[index], history + own.prompt_tokens[index])
            self.assertEqual(requests.think_s[index], 0.0 if turn == 1 else 1.5)
            history = requests.prompt_tokens[index] + requests.output_tokens[index]
        self.assertEqual((len(requests), requests.sessions[-1], requests.turns[-1]), (20, "s6", 2))

    def test_priorities_are_drawn_from_their_levels(self) -> None:
        requests = self.requests(concurrency=1, requests=100, priorities=3)
        assert requests.priority is not None
        self.assertEqual(set(requests.priority), {0, 1, 2})


class SpecTest(unittest.TestCase):
    def test_what_is_not_given_is_filled_in(self) -> None:
        spec = WorkloadSpec(concurrency=8)
        self.assertEqual(
            (spec.requests, spec.prompt_tokens, spec.output_tokens, spec.seed), (256, "256-1024", "64-256", 7)
        )
        self.assertEqual(WorkloadSpec(rate=1.0).arrivals, "poisson")
        self.assertEqual(WorkloadSpec(rate=1.0, burstiness=0.5).arrivals, "gamma")

    def test_a_saved_configuration_gives_the_same_workload(self) -> None:
        for options in (
            {"concurrency": 8},
            {"rate": 2, "burstiness": 0.5},
            {"rate": 1.5, "duration_s": 9, "turns": "1-3"},
        ):
            spec = WorkloadSpec(**options)  # type: ignore[arg-type]
            saved = json.loads(json.dumps(spec.as_dict()))
            self.assertEqual(WorkloadSpec(**saved), spec)

    def test_a_duration_decides_the_number_of_requests(self) -> None:
        workload = build_workload(WorkloadSpec(rate=10.0, duration_s=5.0, arrivals="constant"))
        self.assertEqual(len(workload.requests), 51)

    def test_options_that_contradict_each_other_are_refused(self) -> None:
        for options, words in (
            ({}, "either a concurrency or a rate, or is a trace"),
            ({"concurrency": 1, "rate": 1.0}, "either a concurrency or a rate"),
            ({"trace": "t", "rate": 1.0}, "a trace has its own arrivals"),
            ({"trace": "t", "prompt_tokens": "5"}, "prompt_tokens is '5', but the trace says what it is"),
            ({"trace": "t", "turns": "2"}, "turns is '2', but the trace"),
            ({"trace": "t", "concurrency": 1, "speed": 2.0}, "speed changes arrivals"),
            ({"trace": "t", "trace_format": "azur"}, "unknown trace format 'azur'"),
            ({"trace": "t", "time_unit": "sec"}, "unknown time unit"),
            ({"concurrency": 1, "speed": 2.0}, "give a trace"),
            ({"concurrency": 1, "arrivals": "poisson"}, "give a rate"),
            ({"concurrency": 1, "burstiness": 2.0}, "give a rate"),
            ({"rate": 1.0, "arrivals": "poisson", "burstiness": 2.0}, "use gamma arrivals"),
            ({"concurrency": 1, "ramp_s": 2.0}, "ramp_s belongs to a rate"),
            ({"rate": 1.0, "stagger_s": 2.0}, "stagger_s is given without a concurrency"),
            ({"concurrency": 1, "think_s": 1.0}, "give turns"),
            ({"concurrency": 1, "prefixes": 2}, "shared_prefix_tokens is 0"),
            ({"concurrency": 1, "turns": "1-20000"}, "must be bounded by 10,000"),
        ):
            with self.subTest(options=options), self.assertRaises(InputError) as caught:
                WorkloadSpec(**options)  # type: ignore[arg-type]
            self.assertIn(words, str(caught.exception))

    def test_numbers_out_of_bounds_are_named(self) -> None:
        for name, values in (
            ("requests", (0, -1, 1.5, True, "x", 10**12)),
            ("concurrency", (0, -1, True)),
            ("rate", (0, -1.0, float("nan"), float("inf"), True)),
            ("seed", (-1, 1.5, 2**64)),
            ("think_s", (-1.0, float("nan"))),
            ("duration_s", (0, float("inf"))),
            ("retries", (-1, 10**9)),
            ("backoff_s", (-1.0, float("nan"))),
            ("shared_prefix_tokens", (-1, 10**12)),
            ("prefixes", (0,)),
            ("priorities", (0,)),
        ):
            for value in values:
                base = {} if name in ("rate", "concurrency") else {"concurrency": 1}
                with self.subTest(name=name, value=value), self.assertRaisesRegex(InputError, f"^{name} is "):
                    WorkloadSpec(**{**base, name: value})  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
