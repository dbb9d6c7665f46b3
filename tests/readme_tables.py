"""Write the README's tables of presets from the registries: `python3 -m tests.readme_tables`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from servesim.analysis.rules import RULES
from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.catalog.servers import SERVERS
from servesim.client.flavour import API_FLAVOURS
from servesim.cost.parameters import EVIDENCE, DetailedParameters
from servesim.fleet.autoscale import FIGURES
from servesim.fleet.link import OVERLAPS, SCOPES
from servesim.fleet.router import ROUTERS
from servesim.report.calibration import ABOUT
from servesim.report.renderers import RENDERERS
from servesim.units import format_bytes, format_si
from servesim.workload.arrivals import ARRIVALS
from servesim.workload.lengths import LENGTHS
from servesim.workload.trace import TRACE_FORMATS

README = Path(__file__).resolve().parent.parent / "README.md"


def table(header: str, rows: list[tuple[object, ...]]) -> str:
    columns = header.count("|") - 1
    lines = [header, "|" + " --- |" * columns]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def tables() -> dict[str, str]:
    """Return the text of every table, by the name of its marker."""
    return {
        "hardware": table(
            "| `--hardware` | memory GiB | GB/s | BF16 TFLOP/s | reserve GiB | mfu | mbu | overhead | source |",
            [
                (
                    *(f"`{h.name}`", f"{h.memory_gib:g}", f"{h.bandwidth_gb_s:g}", f"{h.tflops:g}"),
                    *(f"{h.reserve_gib:g}", f"{h.mfu:g}", f"{h.mbu:g}", f"{h.overhead_ms:g} ms"),
                    f"{h.source} ({h.date})",
                )
                for h in HARDWARE.values()
            ],
        ),
        "models": table(
            "| `--model` | parameters | weights | layers | KV per token | source |",
            [
                (
                    *(f"`{m.name}`", format_si(m.params), m.weight_dtype, m.layers),
                    *(format_bytes(m.kv_bytes_per_token(context=4096)), f"{m.source} ({m.date})"),
                )
                for m in MODELS.values()
            ],
        ),
        "parameters": table(
            "| parameter | default | what it is | where that comes from |",
            [
                (f"`{name}`", f"{value:g}", ABOUT[name], EVIDENCE[name])
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
                for flag, choices in (("--link-scope", SCOPES), ("--transfer-overlap", OVERLAPS))
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
        "knobs": table(
            "| servesim | " + " | ".join(SERVERS) + " |",
            [
                (f"`{knob}`", *(coded(server.knobs.get(knob)) for server in SERVERS.values()))
                for knob in dict.fromkeys(knob for server in SERVERS.values() for knob in server.knobs)
            ],
        ),
    }


def coded(knob: str | None) -> str:
    """Return a server's knob as code, a sentence that names flags as it is."""
    return "-" if knob is None else re.sub(r"--[a-z-]+", r"`\g<0>`", knob)


def filled(text: str, name: str, body: str) -> tuple[str, int]:
    """Return `text` with the table `body` at every place marked `name`, and how many places there are."""
    marked = re.compile(rf"(<!-- table: {name} -->\n)(?:\|[^\n]*\n)*(<!-- end -->)")
    return marked.subn(lambda match: f"{match[1]}{body}\n{match[2]}", text)


def with_tables(text: str) -> str:
    """Return the README `text` with every marked table as the registries have it."""
    for name, body in tables().items():
        text, found = filled(text, name, body)
        if found != 1:
            raise SystemExit(f"README.md has {found} tables marked {name}, must have one")
    return text


def put_table(name: str, body: str) -> None:
    """Put one table where the README has its marker; raise SystemExit where it has none."""
    text = README.read_text(encoding="utf-8")
    marked = re.compile(rf"(<!-- table: {name} -->\n)(?:\|[^\n]*\n)*(<!-- end -->)")
    text, found = marked.subn(lambda match: f"{match[1]}{body}\n{match[2]}", text)
    if found != 1:
        raise SystemExit(f"README.md has {found} tables marked {name}, must have one")
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
