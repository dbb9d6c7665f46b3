"""Write what can be regenerated in the documents of `outputs/`: `make outputs`, or `python3 -m tests.write_outputs`.

The tables come from the rules of `diagnose` and from the dialects, the blocks from running their commands. Figures in
the prose are a person's; `make outputs` names those that no output of their document shows any more.
"""

from __future__ import annotations

import re
import sys

from servesim.catalog.servers import SERVERS, ServerDialect
from servesim.diagnose.rules import RULES
from tests.command import ROOT
from tests.guides import without_fences
from tests.page_commands import rewritten, sessions
from tests.page_tables import coded, filled, table

OUTPUTS = ROOT / "outputs"

GAUGES = {
    "requests that run": ("running",),
    "requests that wait; above 0 for long: something is short": ("waiting",),
    "part of the KV cache in use; near 1 with a queue: KV blocks bind": ("kv_usage",),
    "dropped and computed again; climbs: KV blocks bind": ("preemptions",),
    "prompt tokens found in the cache": ("prefix_hits", "cached_prompt_tokens"),
    "time that requests waited": ("queue",),
    "time to the first token": ("ttft",),
    "gaps between tokens": ("itl",),
}
"""What to read on a page by eye, and servesim's words for it: a server has one of them at most."""


def tables() -> dict[str, str]:
    """Return the tables of the runbook by the name of their marker."""
    servers = list(SERVERS)
    return {
        "gauges": table(
            "| what it tells | " + " | ".join(servers) + " |",
            [(about, *(_metric(SERVERS[name], words) for name in servers)) for about, words in GAUGES.items()],
        ),
        "symptoms": table(
            "| symptom | what binds | vLLM | llama.cpp | SGLang | what moves | useless |",
            [
                (
                    rule.symptom,
                    rule.budget,
                    *(coded(knob) for knob in rule.remedy.knobs().values()),
                    ", ".join(f"{metric} {way}" for metric, way in rule.expect.items()) or "-",
                    "; ".join(f"`{option}`: {why}" for option, why in rule.useless.items()),
                )
                for rule in RULES
            ],
        ),
    }


def _metric(server: ServerDialect, words: tuple[str, ...]) -> str:
    return next((f"`{server.metrics[word].names[0]}`" for word in words if word in server.metrics), "-")


def written(text: str) -> str:
    """Return `text` with its tables as the registries have them and its blocks as the commands print them now."""
    for name, body in tables().items():
        text = filled(text, name, body)[0]
    return rewritten(text)


_FIGURE = re.compile(
    r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:%|x\b| ms\b)|(?<![\w.,])\d{1,3}(?:,\d{3})+\b|(?<![\w.,])\d+\.\d+\b"
)


def stale_figures(text: str) -> list[str]:
    """Return the figures of the worked answers in `text` that none of its outputs shows.

    A worked answer is the prose of a section whose heading has the word Example or Answer.
    """
    shown = "\n".join(output for _, output in sessions(text))
    told: list[str] = []
    for section in re.split(r"^(?=##+ )", text, flags=re.MULTILINE):
        if re.match(r"##+ .*(?:Example|Answer)", section):
            told += _FIGURE.findall(without_fences(section))
    numbers = {number.rstrip("%x").removesuffix(" ms") for number in re.findall(r"\d[\d,.]*\d|\d", shown)}
    allowed = numbers | {"3.5"}  # seconds: the story of the burst
    return [figure for figure in told if figure.rstrip("%x").removesuffix(" ms") not in allowed]


def main() -> int:
    stale = False
    for path in sorted(OUTPUTS.glob("*.md")):
        text = written(path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
        for figure in stale_figures(text):
            stale = True
            print(f"{path.name}: {figure} is told, and no output of the document shows it", file=sys.stderr)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
