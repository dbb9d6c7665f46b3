"""The engine that users run does what vLLM's own scheduler did; the replay command says so, and says what it cannot."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servesim.errors import InputError
from servesim.workload.requests import OPEN_END
from tests.vllm_replay import engine_class_named, main, outcome_of, replay
from tests.vllm_traces import read_trace, read_traces, requests_of, rules_for

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
FOLDERS = ("vllm-0.32", "vllm-0.32-async", "vllm-0.18")
LIMITS = {
    "policy": "fcfs",
    "scheduler_reserve_full_isl": True,
    "enable_prefix_caching": True,
    "long_prefill_token_threshold": 32,
}


class TheEngineEqualsVllm(unittest.TestCase):
    def test_every_trace_is_replayed_step_by_step(self) -> None:
        engine = engine_class_named("servesim")
        for folder in FOLDERS:
            for trace in read_traces(FIXTURES / folder):
                with self.subTest(folder=folder, trace=trace.name):
                    self.assertIsNone(replay(trace, engine))


class TheCommand(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def run_command(self, *arguments: str | Path) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*map(str, arguments), "--engine", "reference"])
        return code, out.getvalue(), err.getvalue()

    def write(self, name: str, change: Callable[[list[dict[str, Any]]], None] = lambda lines: None) -> Path:
        """Write a changed copy of a small trace and return its path."""
        text = (FIXTURES / "vllm-0.32" / "26-prefix-in-turn.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        change(lines)
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return path

    def test_identical_scenarios_are_counted_over_all_folders(self) -> None:
        self.write("same")
        code, out, err = self.run_command(self.folder, FIXTURES / "vllm-0.32-async")
        self.assertEqual((code, out, err), (0, "42 of 42 scenarios identical\n", ""))

    def test_a_difference_in_any_key_is_named_with_its_step_and_both_values(self) -> None:
        self.write("same")

        def changed(lines: list[dict[str, Any]], key: str, value: Any) -> None:
            lines[1][key] = value

        first = json.loads(self.write("first").read_text(encoding="utf-8").splitlines()[1])
        name = first["arrived"][0]
        for key, value, expected in (
            (
                "scheduled",
                {name: 7},
                f'scheduled is {{"{name}": {first["scheduled"][name]}}}, vLLM has {{"{name}": 7}}',
            ),
            ("arrived", [], f'arrived is ["{name}"], vLLM has []'),
            ("admitted", [], f'admitted is ["{name}"], vLLM has []'),
            ("resumed", [name], f'resumed is [], vLLM has ["{name}"]'),
            ("preempted", [name], f'preempted is [], vLLM has ["{name}"]'),
            ("finished", [name], f'finished is [], vLLM has ["{name}"]'),
            ("running", [], f'running is ["{name}"], vLLM has []'),
            ("waiting", [name], f'waiting is [], vLLM has ["{name}"]'),
            ("free_blocks", 1, f"free_blocks is {first['free_blocks']}, vLLM has 1"),
            ("free_blocks_at_schedule", 1, f"free_blocks_at_schedule is {first['free_blocks']}, vLLM has 1"),
            ("prefix", {name: {"queries": 1, "hits": 0}}, f'prefix is {json.dumps(first["prefix"])}, vLLM has {{"'),
            ("step", 3, "step is 0, vLLM has 3"),
        ):
            with self.subTest(key=key):
                self.write("first", lambda lines, key=key, value=value: changed(lines, key, value))  # type: ignore[misc]
                code, out, err = self.run_command(self.folder)
                self.assertEqual((code, err), (1, ""))
                self.assertIn(f"{self.folder / 'first'}: step ", out)
                self.assertIn(expected, out)
                self.assertTrue(out.endswith("1 of 2 scenarios identical\n"), out)

    def test_the_order_of_scheduling_counts(self) -> None:
        trace = FIXTURES / "vllm-0.32" / "02-decode-batch.jsonl"
        lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
        lines[2]["scheduled"] = dict(reversed(lines[2]["scheduled"].items()))
        (self.folder / "x.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        code, out, _ = self.run_command(self.folder)
        self.assertEqual(code, 1)
        self.assertIn("step 1: scheduled is ", out)

    def test_steps_too_few_or_too_many_are_a_difference(self) -> None:
        self.write("long", lambda lines: lines.insert(-1, {**lines[-2], "step": 999}))
        self.write("short", lambda lines: lines.pop(-2))  # type: ignore[arg-type]
        code, out, _ = self.run_command(self.folder)
        self.assertEqual(code, 1)
        self.assertIn("step 999: step is nothing, vLLM has 999", out)
        self.assertRegex(out, r"short: step \d+: step is \d+, vLLM has nothing")

    def test_an_engine_that_breaks_or_stops_early_is_a_difference_too(self) -> None:
        class Broken:
            def __init__(self, *_: Any, **__: Any) -> None:
                pass

            def run(self) -> None:
                raise KeyError(7)

        class Idle(Broken):
            def run(self) -> None:
                pass

        trace = read_trace(self.write("trace"))
        self.assertEqual(outcome_of(trace, Broken), "the engine raised KeyError: 7")
        self.assertEqual(outcome_of(trace, Idle), "step 0: step is nothing, vLLM has 0")

    def test_limits_that_make_no_sense_are_one_line_and_exit_2(self) -> None:
        self.write("impossible", lambda lines: lines[0]["config"].update(num_blocks=1))
        code, _, err = self.run_command(self.folder)
        self.assertEqual(code, 2)
        self.assertIn("impossible.jsonl: num_blocks is 0, must be 1 or more", err)

    def test_what_cannot_be_read_is_one_line_that_names_it_and_exit_2(self) -> None:
        empty = self.folder / "empty"
        empty.mkdir()
        plain = self.folder / "plain"
        plain.write_text("x", encoding="utf-8")
        for folder, said in ((self.folder / "none", "no such folder"), (plain, "not a folder"), (empty, "no *.jsonl")):
            code, out, err = self.run_command(FIXTURES / "vllm-0.32", folder)
            self.assertEqual((code, out), (2, ""))
            self.assertIn(said, err)
            self.assertIn(str(folder), err)
            self.assertEqual(err.count("\n"), 1)

    def test_a_broken_trace_is_one_line_that_names_it_and_exit_2(self) -> None:
        good = self.write("trace").read_bytes()
        rows = good.splitlines(keepends=True)
        for content in (
            b"",
            b"{",
            b"\xff\xfe\n",
            b"[]\n",
            b"{}\n{}\n",
            b"[" * 100_000,
            rows[0],
            b"".join(rows[:-1]),
            b"".join(rows[1:]),
            good[: len(good) // 2],
            good.replace(b'"arrival_step": 0', b'"arrival_step": -1'),
            good.replace(b'"prompt_tokens": ', b'"prompt_tokens": -'),
            good.replace(b'"prompt_tokens": ', b'"prompt": '),
            good.replace(b'"num_blocks": 33, "enable', b'"num_blocks": null, "enable'),
            good.replace(b'"policy": "fcfs"', b'"policy": "lpm"'),
            good.replace(b'"vllm": "0.32.0"', b'"vllm": 32'),
            good.replace(b'"running": [', b'"running": ["nobody", '),
        ):
            with self.subTest(content=content[:60]):
                (self.folder / "trace.jsonl").write_bytes(content)
                code, out, err = self.run_command(self.folder)
                self.assertEqual((code, out), (2, ""), err)
                self.assertTrue(err.startswith(f"vllm_replay: {self.folder / 'trace.jsonl'}:"), err)
                self.assertEqual(err.count("\n"), 1, err)

    def test_a_version_without_rules_of_its_own_is_refused_by_name(self) -> None:
        self.write("old", lambda lines: lines[0].update(vllm="0.21.0"))
        code, out, err = self.run_command(self.folder)
        self.assertEqual((code, out), (2, ""))
        self.assertIn("old.jsonl: vLLM 0.21 has rules of its own under this config", err)


class WhatAScenarioMeans(unittest.TestCase):
    def test_the_rules_follow_the_version(self) -> None:
        for version, rules in (((0, 14), "vllm-0.18"), ((0, 18), "vllm-0.18"), ((0, 31), "vllm-0.32")):
            self.assertEqual(rules_for(version, LIMITS), rules)
        self.assertEqual(rules_for((0, 33), LIMITS), "vllm-0.32")

    def test_a_version_between_the_rule_sets_is_taken_where_its_config_plays_no_rule_that_differs(self) -> None:
        self.assertEqual(rules_for((0, 24), {**LIMITS, "long_prefill_token_threshold": 0}), "vllm-0.32")
        plain = {**LIMITS, "long_prefill_token_threshold": 0, "enable_prefix_caching": False}
        self.assertEqual(rules_for((0, 19), plain), "vllm-0.32")

    def test_a_version_whose_rules_are_its_own_is_refused(self) -> None:
        for version, limits in (
            ((0, 11), LIMITS),
            ((0, 24), LIMITS),
            ((0, 19), {**LIMITS, "long_prefill_token_threshold": 0}),
            ((0, 33), {**LIMITS, "policy": "priority"}),
            ((0, 34), LIMITS),
            ((1, 0), LIMITS),
        ):
            with self.subTest(version=version), self.assertRaises(InputError):
                rules_for(version, limits)

    def test_only_what_the_scenario_calls_equal_is_shared(self) -> None:
        def row(name: str, **more: Any) -> dict[str, Any]:
            return {"id": name, "arrival_step": 0, "prompt_tokens": 100, "output_tokens": 20, **more}

        requests = requests_of(
            [
                row("plain"),
                row("head", prefix="s", prefix_tokens=40),
                row("turn", follows="head", prompt_tokens=200),
                row("cut", follows="head", prompt_tokens=60),
                row("grandchild", follows="turn", prompt_tokens=300),
            ]
        )
        assert requests.content is not None
        prefix, head, turn = 0, 1, 2
        self.assertEqual(
            requests.content,
            [
                (),
                ((prefix, 40), (head, OPEN_END)),
                ((prefix, 40), (head, 120), (turn, OPEN_END)),
                ((prefix, 40), (head, 60)),
                ((prefix, 40), (head, 120), (turn, 220)),
            ],
        )

    def test_a_circle_of_followers_is_refused(self) -> None:
        rows = [
            {"id": name, "arrival_step": 0, "prompt_tokens": 9, "output_tokens": 2, "follows": other}
            for name, other in (("a", "b"), ("b", "a"))
        ]
        with self.assertRaises(InputError):
            requests_of(rows)

    def test_the_null_block_is_not_usable_and_the_watermark_is_a_share_of_all_blocks(self) -> None:
        path = FIXTURES / "vllm-0.32" / "01-single-request.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        header = json.loads(lines[0])
        header["config"].update(watermark=0.1, num_blocks=33)
        with tempfile.TemporaryDirectory() as scratch:
            changed = Path(scratch) / "w.jsonl"
            changed.write_text("\n".join([json.dumps(header), *lines[1:]]), encoding="utf-8")
            config = read_trace(changed).config
        self.assertEqual((config.num_blocks, config.watermark_blocks), (32, 3))


if __name__ == "__main__":
    unittest.main()
