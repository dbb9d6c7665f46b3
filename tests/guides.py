"""What may stand in the documents: their fenced blocks, the flags and the metric names that exist.

Three kinds of fenced blocks: `console` has commands and what they print, compared byte for byte; `sh run` has commands
that are run (`guide_runner`), their output depending on the clock; `sh` has commands for machines that a test has not.
All three have their flags checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

from servesim.catalog.servers import SERVERS
from servesim.cli.main import VERBS
from servesim.config.server_flags import FLAGS
from servesim.diagnose.rules import RULES, Remedy

OTHERS: dict[str, frozenset[str]] = {
    "vllm": frozenset({"--port", "--save-detailed", "--enable-prompt-tokens-details", "--max-num-queued-reqs"}),
    "llama-server": frozenset(
        {
            *(
                "--host",
                "--port",
                "--metrics",
                "--slots",
                "--no-kv-unified",
                "--kv-unified",
                "--ubatch-size",
                "--alias",
            ),
            *("--cache-reuse", "--cache-type-v", "--threads"),
        }
    ),
    "sglang": frozenset(
        {"--port", "--enable-metrics", "--schedule-conservativeness", "--schedule-policy", "--max-queued-requests"}
    ),
    "docker": frozenset({"--rm", "--name", "--publish", "--volume", "--format"}),
    "curl": frozenset(
        {
            "--silent",
            "--show-error",
            "--fail",
            "--location",
            "--output",
            "--retry",
            "--retry-delay",
            "--retry-connrefused",
        }
    ),
    "cmake": frozenset({"--build", "--config", "--target", "--parallel"}),
    "git": frozenset({"--depth", "--branch"}),
    "sha256sum": frozenset({"--check"}),
    "sbatch": frozenset({"--array", "--wrap"}),
    "trtllm-serve": frozenset({"--max_batch_size", "--max_num_tokens", "--kv_cache_free_gpu_memory_fraction"}),
    "pip": frozenset({"--upgrade"}),
}
"""Flags of other programs that the documents name and no table of servesim has, from those programs' own manuals."""

_FENCE = re.compile(r"^```([a-z]+(?: run)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z_-]*")


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the body of every fenced block of `text`."""
    for match in _FENCE.finditer(text):
        yield match[1], match[2]


def without_fences(text: str) -> str:
    """Return the prose of `text`: inline code is prose, fenced blocks are not."""
    return _FENCE.sub("", text)


def commands(body: str) -> list[str]:
    """Return the commands of an `sh` block, comments left out, continued lines joined."""
    return [line for line in _joined(body).splitlines() if line.strip() and not line.startswith("#")]


def _joined(body: str) -> str:
    return re.sub(r"\\\n\s*", "", body)


def server_flags(name: str) -> set[str]:
    """Return the flags of one server program that servesim's tables have."""
    flags = set(re.findall(_FLAG, " ".join(SERVERS[name].knobs.values())))
    flags |= {flag for known in FLAGS[name] for flag in known.names}
    for rule in RULES:
        flags |= set(_FLAG.findall(_knob(rule.remedy, name)))
    program = {"llama.cpp": "llama-server"}.get(name, name)
    return flags | OTHERS[program]


def _knob(remedy: Remedy, name: str) -> str:
    return remedy.knobs()[name] or ""


def verb_flags(verb: str) -> set[str]:
    """Return the flags that `servesim VERB` takes."""
    flags: set[str] = set(import_module(f"servesim.cli.{verb}").build_parser()._option_string_actions)
    return flags


def known_flags() -> set[str]:
    """Return every flag that a document may name in its prose."""
    found = {flag for flags in OTHERS.values() for flag in flags}
    for verb in VERBS:
        found |= verb_flags(verb)
    for name in SERVERS:
        found |= server_flags(name)
    return found


_PROGRAMS = {"vllm serve": "vllm", "llama-server": "llama.cpp", "sglang.launch_server": "sglang"}


def unknown_flags(command: str) -> set[str]:
    """Return the flags of a command line that its programs do not have, each part of a pipe for itself."""
    unknown: set[str] = set()
    for part in re.split(r"\s(?:\||&&|;)\s|\$\(", _unquoted(command)):
        named = set(_FLAG.findall(part))
        verb = re.search(r"servesim ([a-z]+)", part)
        if verb is not None and verb[1] in VERBS:
            unknown |= named - verb_flags(verb[1])
            continue
        allowed: set[str] = set()
        for program, name in _PROGRAMS.items():
            if program in part or (program == "llama-server" and "ggml-org/llama.cpp:" in part):
                allowed |= server_flags(name)
        for program, flags in OTHERS.items():
            if re.search(rf"(?<![\w-]){program}\b", part):
                allowed |= flags
        unknown |= named - allowed
    return unknown


def _unquoted(command: str) -> str:
    """Return `command` without its quoted words: a command line that is an argument is another program's."""
    return re.sub(r"'[^']*'", "''", command)


def flags_of_block(kind: str, body: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each command of a block with the flags in it that do not exist."""
    shown = [line[2:] for line in _joined(body).splitlines() if line.startswith("$ ")]
    for command in shown if kind == "console" else commands(body):
        yield command, unknown_flags(command)


def unknown_metrics(text: str) -> set[str]:
    """Return the servers' metric names in `text` that servesim does not read from such a server."""
    known = {name for dialect in SERVERS.values() for name in dialect.names()}
    known |= {name for dialect in SERVERS.values() for metric in dialect.metrics.values() for name in metric.names}
    named = set(re.findall(r"\b(?:vllm|llamacpp|sglang):[a-z][a-z0-9_]*", text))
    return named - known
