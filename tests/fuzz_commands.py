"""The command line as a target: every verb with wrong, missing, huge and hostile words and files."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from unittest import mock

from servesim.cli.completion import Completable, verbs
from servesim.cli.main import VERBS
from servesim.runs.writer import write_run
from servesim.serve.loop import Loop
from tests.command import ROOT, servesim
from tests.fuzz_inputs import NUMBERS, TEXTS, mutate
from tests.fuzz_targets import CAPTURES, FaultError, Target
from tests.report_runs import scan_document, streams, sweep_document
from tests.runs import random_simulated

FORKS = {"--jobs", "--processes", "--wait-ready", "--url"}  # and what would go out of this process, or wait
QUANTITIES = ("1", "2", "7", "0.5", "50%", "10ms", "2s", "1k", "4GB", "25GB/s", "1-5", "1:1", "l4-24gb=1/h", "a=1,b=2")
FILES = ("burst.jsonl", "run.jsonl", "other.jsonl", "sweep.json", "scan.json", "page.txt", "device.json", "fleet.json")
ODD_FILES = ("missing", ".", "empty", "binary", "/dev/null", "config.json", "spoilt.json", "spoilt.jsonl", "-")
POSSIBLE_TEXTS = tuple(text.replace("\0", "").replace("\ud800", "\udcff") for text in TEXTS)  # as words of a command
ODD_WORDS = ("--json", "--", "-x", "--requests=", "--=")
HELP = {"-h", "--help", "--help-all"}
SMALL = ("--requests", "4", "--prompt-tokens", "20", "--output-tokens", "4", "--quiet")
GOOD: dict[str, tuple[str, ...]] = {
    "capacity": ("--hardware l4-24gb", "--model llama-3.1-70b --tensor-parallel-size 4 --context 8k"),
    "simulate": (
        "",
        "--trace burst.jsonl --hardware l4-24gb --json",
        "--replicas 2 --rate 9",
        "--disagg 1:1 --link 1GB/s",
    ),
    "sweep": ("--concurrency 1,2", "--max-tokens 2,4 --json", "--rate 1,2 --hardware l4-24gb"),
    "loadgen": ("--concurrency 2", "--rate 5 --json", "--find concurrency --slo ttft_p95=1s"),
    "plan": ("--slo ttft_p95=1s --hardware l4-24gb", "--slo tpot=1s --rate 3 --price l4-24gb=1/h --hardware l4-24gb"),
    "calibrate": ("run.jsonl", "table.csv --hardware l4-24gb"),
    "validate": ("--only m4-pro",),
    "diagnose": ("page.txt --hardware l4-24gb", "run.jsonl --json", "sweep.json", "page.txt page.txt --window 3s"),
    "report": ("run.jsonl", "sweep.json --format svg", "run.jsonl other.jsonl --json", "spoilt.jsonl --format csv"),
    "serve": ("--port 0", "--port 0 --dialect llamacpp --slots 2 --kv-tokens 8192"),
    "trace": ("describe burst.jsonl --json", "sample burst.jsonl --first 3", "scale burst.jsonl --rate 2", "convert x"),
    "models": ("", "llama-3.1-8b", "config.json --json", "--formats"),
    "hardware": ("", "l4-24gb", "device.json --json"),
    "compare": ("run.jsonl other.jsonl", "sweep.json#1 sweep.json#2 --json", "run.jsonl run.jsonl --fail-if ttft>1%"),
    "watch": ("http://127.0.0.1:9 --samples 1",),
    "completion": ("bash", "zsh", "fish"),
    "schema": ("", "summary"),
    "help": ("", "verbs", "metrics.md"),
}
LAST: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("simulate", "sweep"), SMALL),
    "loadgen": (*SMALL, "--url", "http://127.0.0.1:9"),
    "plan": (*SMALL, "--seeds", "1", "--fresh-seeds", "0", "--jobs", "1"),
}


@contextlib.contextmanager
def workplace() -> Iterator[None]:
    """Work in a folder with good, spoilt and odd files, where nothing that is written does harm."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            _write_files(Path(folder))
            with (
                mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(b""))),
                mock.patch.object(Loop, "run", _serve_nobody),
            ):
                yield
        finally:
            os.chdir(before)


_serve = Loop.run


def _serve_nobody(loop: Loop, *_: object) -> None:
    loop.stop()
    _serve(loop)


def _write_files(folder: Path) -> None:
    burst = (ROOT / "fixtures" / "burst.jsonl").read_bytes().splitlines(keepends=True)[:6]
    (folder / "burst.jsonl").write_bytes(b"".join(burst))
    write_run("run.jsonl", random_simulated(3), "simulate")
    write_run("other.jsonl", streams(1, 8), "loadgen")
    for name, document in (("sweep", sweep_document()), ("scan", scan_document())):
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "page.txt").write_bytes((CAPTURES / "vllm-metrics-after-load.txt").read_bytes())
    (folder / "device.json").write_text('{"base": "l4-24gb", "mfu": 0.4}', encoding="utf-8")
    (folder / "fleet.json").write_text('{"replicas": [{"count": 1}, {"hardware": "l4-24gb"}]}', encoding="utf-8")
    (folder / "table.csv").write_text("prompt_tokens,output_tokens,ttft_ms,tpot_ms\n100,20,30,9\n", encoding="utf-8")
    (folder / "config.json").write_bytes((ROOT / "servesim/catalog/data/llama-3.1-8b.json").read_bytes())
    (folder / "empty").write_bytes(b"")
    (folder / "binary").write_bytes(bytes(range(256)) * 4)
    (folder / "spoilt.json").write_text('{"rows": [{"requests": {}, "throughput": {"a": []}}]}', encoding="utf-8")
    (folder / "spoilt.jsonl").write_bytes(Path("run.jsonl").read_bytes()[:-40])


def make_command(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return the words of a command: a good one with one to four things changed."""
    words: list[str] = json.loads(rng.choice(seeds))
    verb = words[0] if words else ""
    options = _options(verb) if verb in VERBS else []
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(min(1, len(words)), len(words))
        chance = rng.random()
        if chance < 0.6 and options:
            option = rng.choice(options)
            words[at:at] = [rng.choice(option.flags), *([_value(rng, option)] if option.takes_value else [])]
        elif chance < 0.75 and len(words) > 1:
            words[min(at, len(words) - 1)] = _odd(rng)
        elif chance < 0.85:
            del words[at : at + 1]
        else:
            words.insert(at, _odd(rng))
    if rng.random() < 0.1:
        _spoil_a_file(rng, words)
    return json.dumps(words).encode()


_KNOWN: dict[str, list[Completable]] = {}


def _options(verb: str) -> list[Completable]:
    if not _KNOWN:
        for each in verbs(VERBS, {}):
            _KNOWN[each.name] = [one for one in each.options if not FORKS.intersection(one.flags)]
    return _KNOWN[verb]


def _value(rng: random.Random, option: Completable) -> str:
    chance = rng.random()
    if chance < 0.35 and (option.words or option.path):
        return rng.choice(option.words or FILES)
    if option.path and chance < 0.7:
        return rng.choice(ODD_FILES)
    if chance < 0.75:
        return rng.choice(QUANTITIES)
    return _odd(rng)


def _odd(rng: random.Random) -> str:
    return rng.choice(
        rng.choice((NUMBERS, POSSIBLE_TEXTS, FILES, ODD_FILES, QUANTITIES, ("--json", "--", "-x", "--requests=")))
    )


def _spoil_a_file(rng: random.Random, words: list[str]) -> None:
    """Put a mutation of a file in its place: the words say what to write, so that the input is whole in itself."""
    name = rng.choice(FILES)
    with workplace():
        data = mutate(rng, [Path(name).read_bytes()])[:20_000]
    words[:0] = ["=", name, data.decode("latin-1")]
    words.insert(rng.randint(min(4, len(words)), len(words)), name)


def run_command(data: bytes) -> None:
    words = [str(word) for word in json.loads(data)]
    with workplace():
        if words[:1] == ["="] and len(words) > 2:
            Path(words[1] or "x").name and Path(Path(words[1]).name).write_bytes(words[2].encode("latin-1", "replace"))
            words = words[3:]
        verb = words[0] if words else ""
        argv = [*words[:1], *(word for word in words[1:] if word not in FORKS), *LAST.get(verb, ())]
        said = servesim(*argv)
    if said.code not in (0, 1, 2):
        raise FaultError(f"exit code {said.code}")
    if not argv and (said.code != 2 or said.err or not said.out.startswith("examples:")):
        raise FaultError("a bare `servesim` does not show its help")
    if said.code == 2 and argv and (said.out or said.err.count("\n") != 1 or not said.err.startswith("error: ")):
        raise FaultError(f"bad input is told by {said.out[:60]!r} and {said.err[:200]!r}")
    if "Traceback" in said.err:
        raise FaultError("a traceback")
    for text in (said.err, said.out if verb not in ("report", "trace") else ""):
        if any(not character.isprintable() and character not in "\n\t" for character in text):
            raise FaultError("a character that steers a terminal")
    if said.code == 0 and "--json" in argv and not HELP.intersection(argv) and said.out:
        json.loads(said.out, parse_constant=_no_number)


def _no_number(constant: str) -> float:
    raise FaultError(f"{constant} in JSON")


@cache
def command_seeds() -> list[bytes]:
    commands = [f"{verb} {rest}" for verb, examples in GOOD.items() for rest in examples]
    for verb in VERBS:
        if verb not in ("loadgen", "plan", "validate", "serve", "watch"):
            commands += import_module(f"servesim.cli.{verb}").EXAMPLES
    words = [shlex.split(command.removeprefix("servesim ").split(" | ")[0]) for command in commands]
    return [json.dumps(each).encode() for each in [*words, [], ["--help"], ["nonsense"]] if each[:1] != ["zcat"]]


COMMANDS = {"command": Target(run=run_command, seeds=command_seeds, may=(), make=make_command, words=True)}
