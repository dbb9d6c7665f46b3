"""Metric pages in the Prometheus text format, read and written.

The exposition format 0.0.4, and what else scrapers meet: quoted metric names, exemplars, OpenMetrics' `# EOF`. Reading
is a lexer that knows quotes and escapes; a line that it cannot read is counted and passed over, never the page.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LARGEST = 1e100
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:")


class Sample(NamedTuple):
    """One line of a page. The timestamp is in milliseconds, as written."""

    name: str
    labels: dict[str, str]
    value: float
    timestamp_ms: float | None = None


@dataclass(slots=True)
class Page:
    """A page's samples by name, in the page's order; `at_s` is when it was scraped, on the scraper's clock."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    malformed_lines: int = 0
    at_s: float | None = None

    def finite(self, name: str) -> list[Sample]:
        """Return the samples called `name` whose value is a number of this world: sums and products stay finite."""
        return [sample for sample in self.samples.get(name, ()) if abs(sample.value) < LARGEST]


def parse_page(text: str, *, at_s: float | None = None, wanted: Collection[str] | None = None) -> Page:
    """Read a page; with `wanted`, only the samples of those names (a vLLM page has 500 lines, a scrape needs 30).

    >>> parse_page('llamacpp:prompt_tokens_total 1.5e+06').samples["llamacpp:prompt_tokens_total"][0].value
    1500000.0
    """
    page = Page(at_s=at_s)
    for line in text.split("\n"):
        line = line.strip(" \t\r")
        if not line:
            continue
        if line[0] == "#":
            _take_comment(line, page)
            continue
        if wanted is not None and line[0] != "{" and _leading_name(line) not in wanted:
            continue
        try:
            sample = parse_sample(line)
        except ValueError:
            page.malformed_lines += 1
            continue
        if wanted is None or sample.name in wanted:
            page.samples.setdefault(sample.name, []).append(sample)
    return page


def parse_sample(line: str) -> Sample:
    """Read one sample line. Raises ValueError."""
    name = _leading_name(line)
    position = _skip_blanks(line, len(name))
    labels: dict[str, str] = {}
    if line[position : position + 1] == "{":
        position, quoted_name = _read_labels(line, position + 1, labels)
        name = name or quoted_name
    if not name or name[0].isdigit():
        raise ValueError(f"no metric name in {line!r}")
    rest = line[position:].partition(" # ")[0].split()  # an exemplar is passed over
    if not 1 <= len(rest) <= 2:
        raise ValueError(f"no value in {line!r}")
    return Sample(name, labels, _number(rest[0]), _number(rest[1]) if len(rest) == 2 else None)


def _leading_name(line: str) -> str:
    end = 0
    for end, character in enumerate(line):
        if character not in _NAME:
            return line[:end]
    return line


def _skip_blanks(line: str, position: int) -> int:
    while line[position : position + 1] in (" ", "\t"):
        position += 1
    return position


def _read_labels(line: str, position: int, labels: dict[str, str]) -> tuple[int, str]:
    """Fill `labels` from behind the opening brace; return the position behind the closing one and a quoted name."""
    metric_name = ""
    while True:
        position = _skip_blanks(line, position)
        if line[position : position + 1] == "}":
            return position + 1, metric_name
        if line[position : position + 1] == '"':
            label, position = _read_quoted(line, position)
        else:
            start = position
            while line[position : position + 1] in _NAME and position < len(line):
                position += 1
            label = line[start:position]
        position = _skip_blanks(line, position)
        if line[position : position + 1] == "=":
            position = _skip_blanks(line, position + 1)
            labels[label], position = _read_quoted(line, position)
            position = _skip_blanks(line, position)
        else:
            metric_name = label  # {"metric.name", label="..."}
        if not label or line[position : position + 1] not in (",", "}"):
            raise ValueError(f"labels cannot be read in {line!r}")
        position += line[position] == ","


def _read_quoted(line: str, position: int) -> tuple[str, int]:
    if line[position : position + 1] != '"':
        raise ValueError(f"a quote is missing in {line!r}")
    position += 1
    end = line.find('"', position)
    backslash = line.find("\\", position, end)
    if end >= 0 and backslash < 0:  # no escapes: the usual value
        return line[position:end], end + 1
    pieces: list[str] = []
    while position < len(line):
        character = line[position]
        if character == '"':
            return "".join(pieces), position + 1
        if character == "\\" and position + 1 < len(line):
            following = line[position + 1]
            pieces.append(_ESCAPES.get(following, character + following))
            position += 1
        else:
            pieces.append(character)
        position += 1
    raise ValueError(f"a quote is not closed in {line!r}")


def _number(text: str) -> float:
    """Read a number as Go writes it: what float() takes, Inf and NaN in any case, but no underscores."""
    if "_" in text:
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def _take_comment(line: str, page: Page) -> None:
    words = line.split(None, 3)
    if len(words) < 4 or words[0] != "#":
        return
    if words[1] == "TYPE":
        page.types[words[2]] = words[3].strip()
    elif words[1] == "HELP":
        page.helps[words[2]] = words[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric to write: a name, its type and help text, and its samples (a histogram's with their own suffixes)."""

    name: str
    kind: str  # counter, gauge, histogram
    about: str
    samples: tuple[Sample, ...]


def single(name: str, kind: str, about: str, values: Iterable[tuple[Mapping[str, str], float]]) -> Family:
    """Return a counter's or gauge's family, one sample for each pair of labels and value."""
    samples = tuple(Sample(name, dict(labels), value) for labels, value in values)
    return Family(name=name, kind=kind, about=about, samples=samples)


def histogram(
    name: str, about: str, labels: Mapping[str, str], *, bounds: Iterable[float], counts: Iterable[int], total: float
) -> Family:
    """Return a histogram's family. `counts` are per bucket, not summed, the last one beyond all `bounds`.

    `total` is the sum of the observed values.
    """
    samples: list[Sample] = []
    running = 0
    for bound, count in zip([*bounds, math.inf], counts, strict=True):
        running += count
        samples.append(Sample(f"{name}_bucket", {**labels, "le": format_number(bound)}, running))
    samples.append(Sample(f"{name}_sum", dict(labels), total))
    samples.append(Sample(f"{name}_count", dict(labels), running))
    return Family(name=name, kind="histogram", about=about, samples=tuple(samples))


def format_page(families: Iterable[Family]) -> str:
    """Write a page."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escape(family.about)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += map(format_sample, family.samples)
    return "\n".join(lines) + "\n" if lines else ""


def format_openmetrics(families: Iterable[Family]) -> str:
    """Write a page of OpenMetrics 1.0: a counter is named without `_total`, and the page says where it ends."""
    lines: list[str] = []
    for family in families:
        name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
        lines.append(f"# TYPE {name} {family.kind}")
        if name.endswith("_seconds"):
            lines.append(f"# UNIT {name} seconds")
        lines.append(f"# HELP {name} {_escape(family.about, quoted=True)}")
        lines += map(format_sample, family.samples)
    return "\n".join([*lines, "# EOF"]) + "\n"


def format_sample(sample: Sample) -> str:
    """Write one sample line."""
    labels = ",".join(f'{name}="{_escape(value, quoted=True)}"' for name, value in sample.labels.items())
    braces = f"{{{labels}}}" if labels else ""
    stamp = "" if sample.timestamp_ms is None else f" {sample.timestamp_ms:.0f}"
    return f"{sample.name}{braces} {format_number(sample.value)}{stamp}"


def format_number(value: float) -> str:
    """Write a number as Prometheus clients do."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _escape(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text
