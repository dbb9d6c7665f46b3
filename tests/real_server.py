"""Measure, calibrate, predict, compare on a real llama.cpp server, as `servesim help calibrate` shows it.

`make real-server` runs it: loadgen saves runs at concurrency 1 and 4 and of a long prompt, `calibrate` fits a device to
them, `simulate` predicts what was not fitted: concurrency 8, a scan of prompt lengths and one of output lengths. Each
figure is held against its bound: throughput within 10 % (25 % must never be missed), TTFT and TPOT p50 within 15 %.
Every step is a command that a user would type. It measures this machine, so it wants a quiet one. `--write` puts
commands and table into the guide; exit 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servesim.calibrate.measurement import figures_of
from servesim.runs.reader import read_run
from servesim.summary.summary import summarize
from tests.page_commands import put, put_table
from tests.smoke import ROOT, free_port, install, server

# name: (concurrency, prompt tokens, output tokens, requests)
FITTED = {"c1": (1, 40, 64, 12), "c4": (4, 40, 64, 32), "long": (1, 400, 32, 8)}
HELD = {
    "c8": (8, 40, 64, 48),
    **{f"prompt-{n}": (1, n, 32, 6) for n in (20, 80, 160, 320, 640)},
    **{f"output-{n}": (1, 40, n, 6) for n in (16, 32, 96, 128)},
}
FIGURES = {"throughput": 0.10, "ttft_p50": 0.15, "tpot_p50": 0.15}
"""What is held, and its bound."""

NEVER = 0.25  # of throughput
NO_CACHE = '{"cache_prompt": false}'  # every prompt begins with the chat template's own head, which a slot would keep
SHOWN = r"(output_tokens_per_s|ttft_p50|tpot_p50|e2e_p50) "  # of a comparison
BEGIN, END = "<!-- loop -->\n```text\n", "```\n<!-- end -->"


@dataclass(frozen=True, slots=True)
class Loop:
    """The commands, run in a folder of their own, and what they said."""

    folder: Path
    port: int
    model: Path

    def run(self, *words: str, good: Sequence[int] = (0,)) -> str:
        """Run one `servesim` command there; return its stdout."""
        done = subprocess.run(
            [sys.executable, "-m", "servesim", *words, "--quiet"],
            cwd=self.folder, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
            check=False, timeout=1800,
        )  # fmt: skip
        if done.returncode not in good:
            raise SystemExit(f"servesim {shlex.join(words)}\n{done.stderr}")
        return done.stdout

    def measure(self, name: str, load: tuple[int, int, int, int]) -> tuple[str, ...]:
        """Measure one load into NAME.jsonl, unless it is there; return the command."""
        concurrency, prompt, output, requests = load
        words = ("loadgen", "--url", f"http://127.0.0.1:{self.port}", "--concurrency", str(concurrency))
        words += ("--requests", str(requests), "--prompt-tokens", str(prompt), "--output-tokens", str(output))
        words += ("--ignore-eos", "--extra-body", NO_CACHE, "--save", f"{name}.jsonl")
        if not (self.folder / f"{name}.jsonl").exists():
            self.run(*words, "--wait-ready", "60s")
            print(f"measured {name}", file=sys.stderr)
        return words

    def calibrate(self) -> tuple[tuple[str, ...], str]:
        """Fit the device; return the command and what it said."""
        words = ("calibrate", *(f"{name}.jsonl" for name in FITTED), "--hardware", "cpu-4vcpu", "--model", "model.gguf")
        words += ("--cost-model", "detailed", "-o", "fitted.json")
        return words, self.run(*words)

    def predict(self, name: str) -> tuple[str, ...]:
        """Simulate NAME's load on the fitted device into NAME.predicted.jsonl; return the command."""
        words = ("simulate", "--like", f"{name}.jsonl", "--hardware", "fitted.json", "--model", "model.gguf")
        words += ("--save", f"{name}.predicted.jsonl")
        self.run(*words)
        return words

    def compare(self, name: str) -> tuple[tuple[str, ...], str]:
        words = ("compare", f"{name}.predicted.jsonl", f"{name}.jsonl", "--margin", "15%")
        lines = [line for line in self.run(*words).splitlines() if re.match(SHOWN, line)]
        return (*words, "|", "grep", "-E", f"^{SHOWN}"), "\n".join(lines)

    def figures(self, path: str) -> dict[str, float]:
        """Return the figures that are held of a saved run: tokens per second, and seconds."""
        run = read_run(str(self.folder / path))
        names = [name for name in FIGURES if name != "throughput"]
        return {"throughput": summarize(run).throughput.output_tokens_per_s or 0.0, **figures_of(run, names)}


def held_rows(loop: Loop) -> tuple[list[str], list[str]]:
    """Return the table's rows, and what is outside of its bound."""
    rows, outside = list[str](), list[str]()
    for name in HELD:
        measured, predicted = loop.figures(f"{name}.jsonl"), loop.figures(f"{name}.predicted.jsonl")
        cells = [name]
        for figure, bound in FIGURES.items():
            scale, off = 1.0 if figure == "throughput" else 1e3, predicted[figure] / measured[figure] - 1
            cells += [f"{measured[figure] * scale:.1f}", f"{predicted[figure] * scale:.1f}", f"{off:+.1%}"]
            if abs(off) > bound:
                outside.append(f"{name}: {figure} is off by {off:+.1%}, bound {bound:.0%}")
            if figure == "throughput" and abs(off) > NEVER:
                outside.append(f"{name}: throughput is off by {off:+.1%}, which must never be")
        rows.append(f"| {' | '.join(cells)} |")
    return rows, outside


def transcript(loop: Loop, said: Sequence[tuple[tuple[str, ...], str]]) -> str:
    """Return the commands and what they said, as the guide shows them."""
    lines = []
    for words, out in said:
        text = shlex.join(words).replace("'|'", "|").replace(f"127.0.0.1:{loop.port}", "127.0.0.1:8080")
        lines += [f"$ servesim {text}", *([out.rstrip("\n")] if out else [])]
    return "\n".join(re.sub(r"^(\{.{100}).*\}$", r"\1...", line, flags=re.MULTILINE) for line in lines) + "\n"


def write_guide(shown: str, rows: Sequence[str]) -> None:
    """Put transcript and table where the guide has their markers."""
    put(BEGIN, END, shown)
    columns = [
        "load",
        *(cell for name in ("tok/s", "TTFT p50 ms", "TPOT p50 ms") for cell in (name, "predicted", "off")),
    ]
    put_table("real-server", "\n".join([f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns), *rows]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.real_server", allow_abbrev=False)
    parser.add_argument("--threads", type=int, help="threads of the server (its own choice when not given)")
    parser.add_argument("--keep", type=Path, help="keep the saved runs in this folder, or use those that are there")
    parser.add_argument("--write", action="store_true", help="write commands and table into the guide")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder: Path = (asked.keep or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        _, model = install()
        (folder / "model.gguf").unlink(missing_ok=True)
        (folder / "model.gguf").symlink_to(model)
        loop = Loop(folder, free_port(), folder / "model.gguf")
        said: list[tuple[tuple[str, ...], str]] = []
        loads = {**FITTED, **HELD}
        if all((folder / f"{name}.jsonl").exists() for name in loads):
            said += [(loop.measure(name, load), "") for name, load in FITTED.items()]
        else:
            with server(loop.port, asked.threads):
                measured = {name: loop.measure(name, load) for name, load in loads.items()}
            said += [(measured[name], "") for name in FITTED]
        said.append(loop.calibrate())
        said += [(loop.measure("c8", HELD["c8"]), ""), (loop.predict("c8"), ""), loop.compare("c8")]
        for name in HELD:
            loop.predict(name)
        rows, outside = held_rows(loop)
        shown = transcript(loop, said)
        print(shown)
        print("\n".join(rows))
        told = json.loads((folder / "fitted.json").read_text(encoding="utf-8"))
        print(f"\n{told['fitted']}")
        if asked.write:
            write_guide(shown, rows)
    for what in outside:
        print(f"outside: {what}", file=sys.stderr)
    return int(bool(outside))


if __name__ == "__main__":
    sys.exit(main())
