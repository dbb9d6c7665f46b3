"""Write the pages' tables from the registries: `python3 -m tests.page_tables`."""

from __future__ import annotations

import re
import sys

from servesim.catalog.servers import SERVERS
from servesim.client.flavour import API_FLAVOURS
from servesim.config.fleet import LINK_SCOPES, TRANSFER_OVERLAPS
from servesim.cost.detailed import PARAMETERS, DetailedParameters
from servesim.diagnose.rules import RULES
from servesim.fleet.autoscale import FIGURES
from servesim.fleet.router import ROUTERS
from servesim.report.renderers import RENDERERS
from servesim.workload.arrivals import ARRIVALS
from servesim.workload.lengths import LENGTHS
from servesim.workload.traces.trace import TRACE_FORMATS
from tests.page_commands import PAGES

DIFFERS = {
    "--max-num-seqs": "llama.cpp's slots have a cache of their own",
    "--kv-tokens": "vLLM counts blocks: see `--kv-blocks`; llama.cpp divides it by its slots unless `--kv-unified`",
    "--slots": "models llama.cpp: N slots, floor(T/N) tokens each; a prompt that is longer is a 400",
    "--max-num-batched-tokens": "SGLang: of prompts; its steps do not mix prompts and decoding unless told to; "
    "llama.cpp cuts once more at `--ubatch-size`",
    "--prefix-caching": "vLLM and SGLang share between requests; llama.cpp reuses the last prompt of the same slot",
    "--no-prefix-caching": "caching is on by default on all three, off by default in servesim",
    "--max-model-len": "llama.cpp: what one slot has",
    "--kv-blocks": "of vLLM's count one is its null block: N - 1 are usable",
    "--gpu-memory-utilization": "SGLang's is the share for weights and KV cache, activations not included",
    "--policy": "SGLang has `--schedule-policy` with other names (lpm sorts by cached prefix): not modelled",
    "running": "the same, preempted ones not counted",
    "waiting": "vLLM: preempted ones included; llama.cpp: for a slot, nothing else",
    "kv_usage": "a fraction from 0 to 1; vLLM reads it after the step's output, servesim between schedule and output; "
    "llama.cpp: older builds only",
    "preemptions": "SGLang says retracted; llama.cpp never preempts",
    "prefix_hits": "in tokens; vLLM before 0.27 counted every attempt to admit",
    "prompt_tokens": "vLLM's holds cached tokens; llama.cpp's `llamacpp:prompt_tokens_total` does not",
    "mean_busy_slots": "a mean since the start; a window's is (a1 d1 - a0 d0) / (d1 - d0), d `llamacpp:n_decode_total`",
    "ttft": "servers count from arrival at the server, clients from the send: a gateway's delay is the difference",
    "itl": "servers count gaps between steps' outputs; a client counts what reached it",
    "queue": "servesim: to the start of the first step that admits it",
}
"""What a person must know who reads a row of the table of words: by option, or by a dialect's word for a metric."""

FIGURE_NAMES = {
    "running": "running",
    "waiting": "waiting",
    "kv_usage": "KV in use",
    "preemptions": "preemptions",
    "prefix_hits": "prefix hits",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "mean_busy_slots": "mean batch",
    "ttft": "TTFT",
    "itl": "ITL",
    "queue": "queue",
    "e2e": "E2E",
}
"""The figures of a report that servers have metrics for, as the report calls them."""


def table(header: str, rows: list[tuple[object, ...]]) -> str:
    columns = header.count("|") - 1
    lines = [header, "|" + " --- |" * columns]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def tables() -> dict[str, str]:
    """Return the text of every table, by the name of its marker."""
    return {
        "parameters": table(
            "| parameter | default | what it is | where that comes from |",
            [
                (f"`{name}`", f"{value:g}", PARAMETERS[name].about, PARAMETERS[name].evidence)
                for name, value in DetailedParameters().as_dict().items()
            ],
        ),
        "lengths": table(
            "| length | what it draws |", [(f"`{kind.usage}`", kind.summary) for kind in LENGTHS.values()]
        ),
        "scaling": table(
            "| `--scale-on` | what it is | `--target` |",
            [(f"`{name}`", figure.about, f"{figure.target:g}") for name, figure in FIGURES.items()],
        ),
        "arrivals": table(
            "| `--arrivals` | how requests come |", [(f"`{name}`", kind.summary) for name, kind in ARRIVALS.items()]
        ),
        "routers": table(
            "| `--router` | who gets a request |", [(f"`{name}`", kind.about) for name, kind in ROUTERS.items()]
        ),
        "link": table(
            "| option | | what it means |",
            [
                (f"`{flag}`", f"`{name}`", about)
                for flag, choices in (("--link-scope", LINK_SCOPES), ("--transfer-overlap", TRANSFER_OVERLAPS))
                for name, about in choices.items()
            ],
        ),
        "reports": table(
            "| `--format` | what it is | by the name of the file |",
            [
                (f"`{name}`", kind.summary, ", ".join(f"`{suffix}`" for suffix in kind.suffixes) or "-")
                for name, kind in RENDERERS.items()
            ],
        ),
        "rules": table(
            "| what is seen | what binds | what to change first |",
            [(rule.symptom, rule.budget, rule.remedy.change) for rule in RULES],
        ),
        "traces": table(
            "| `--trace-format` | what it is |", [(f"`{name}`", kind.summary) for name, kind in TRACE_FORMATS.items()]
        ),
        "apis": table(
            "| `--api` | route | what it is |",
            [(f"`{name}`", f"`{api.path}`", api.about) for name, api in API_FLAVOURS.items()],
        ),
        "words": table(
            "| servesim | " + " | ".join(SERVERS) + " | what differs |",
            [
                *((f"`{knob}`", *_knobs(knob), DIFFERS.get(knob, "")) for knob in _words("knobs")),
                *((FIGURE_NAMES[word], *_names(word), DIFFERS.get(word, "")) for word in FIGURE_NAMES),
            ],
        ),
    }


def _words(table_name: str) -> list[str]:
    """Return the keys that the servers' tables of this name have between them, in order of first mention."""
    return list(dict.fromkeys(word for server in SERVERS.values() for word in getattr(server, table_name)))


def _knobs(knob: str) -> list[str]:
    return [coded(server.knobs.get(knob)) for server in SERVERS.values()]


def _names(word: str) -> list[str]:
    metrics = [server.metrics.get(word) for server in SERVERS.values()]
    return ["-" if metric is None else f"`{metric.names[0]}`" for metric in metrics]


def coded(knob: str | None) -> str:
    """Return a server's knob as code, a sentence that names flags as it is."""
    return "-" if knob is None else re.sub(r"--[a-z-]+", r"`\g<0>`", knob)


def filled(text: str, name: str, body: str) -> tuple[str, int]:
    """Return `text` with the table `body` at every place marked `name`, and how many places there are."""
    marked = re.compile(rf"(<!-- table: {name} -->\n)(?:\|[^\n]*\n)*(<!-- end -->)")
    return marked.subn(lambda match: f"{match[1]}{body}\n{match[2]}", text)


def with_tables(text: str) -> str:
    """Return the page `text` with every table that it marks as the registries have it."""
    for name, body in tables().items():
        text, _ = filled(text, name, body)
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
