"""The page: one file that loads nothing and runs nothing, in which every word from outside stays a word."""

from __future__ import annotations

import re
import unittest
from html.parser import HTMLParser

from servesim import simulate
from servesim.report.charts import FIGURES, draw
from servesim.report.html import page
from servesim.report.input import ReportInput, grid_of
from servesim.report.renderers import RENDERERS
from servesim.report.svg import PAGE_STYLE, plain
from servesim.report.text import fleet_lines
from tests.extent import in_full
from tests.report_runs import HOSTILE, burst, divided, hostile, materials, named, streams, sweep_document
from tests.runs import measured, random_simulated

VOID = {"meta", "br"}
KNOWN = set(
    "html head meta title style body h1 h2 h3 p figure figcaption ul li div svg g text line rect path table thead "
    "tbody tr th td dl dt dd small b span details summary pre footer".split()
)


class Reader(HTMLParser):
    """Reads a page strictly: every element known and closed, every attribute one that cannot act."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def html(report: ReportInput) -> str:
    return "".join(RENDERERS["html"].render(report, list(FIGURES)))


def read(content: str) -> Reader:
    reader = Reader()
    reader.feed(content)
    reader.close()
    assert reader.open == [], reader.open
    return reader


class ThePage(unittest.TestCase):
    def test_it_loads_nothing_and_runs_nothing(self) -> None:
        for name, report in materials().items():
            with self.subTest(report=name):
                content = html(report)
                reader = read(content)
                self.assertLessEqual(reader.tags, KNOWN)
                self.assertFalse({"src", "href", "srcset", "action", "style", "data"} & reader.attributes)
                self.assertFalse([each for each in reader.attributes if each.startswith("on")])
                for word in ("<script", "url(", "@import", "http://", "https://", "javascript:"):
                    told = content.replace("http://127.0.0.1:8000", "")  # the server that was measured, as text
                    self.assertNotIn(word, told)
                self.assertIn("default-src 'none'", content)
                self.assertEqual(len(reader.ids), len(set(reader.ids)))

    def test_a_hostile_server_and_trace_stay_text(self) -> None:
        report = ReportInput(HOSTILE, [named(hostile(), HOSTILE), named(streams(), "b")], notes=[HOSTILE])
        document = sweep_document()
        document["config"][HOSTILE] = HOSTILE
        for row in document["rows"]:
            row["swept"] = {HOSTILE: 1, "concurrency": 1}
            row[HOSTILE] = HOSTILE
        report.grids.append(grid_of(document, name=HOSTILE, path=HOSTILE))
        content = html(report)
        content.encode("utf-8")
        reader = read(content)
        self.assertLessEqual(reader.tags, KNOWN)
        self.assertNotIn("\x1b", content)
        self.assertNotIn("\u202e", content)
        self.assertIn(plain(HOSTILE), "".join(reader.text))  # shown, not thrown away

    def test_the_summary_is_on_it(self) -> None:
        text = " ".join(read(html(materials()["burst"])).text)
        for words in ("17,679.7", "52,540.2", "48", "100.0%", "not met", "llama-3.1-8b", "l4-24gb", "max_num_seqs"):
            self.assertIn(words, text)

    def test_what_a_fleet_and_its_features_add_is_on_it(self) -> None:
        run = simulate(
            rate=20.0, requests=24, output_tokens="8", autoscale="1:2", cold_start_s=0.1, price="2.5/h",
            classes="<b>=1,chat=2/priority=1", scale_every_s=0.1,
        )  # fmt: skip
        lines = fleet_lines(named(run).summary)
        self.assertGreater(len(lines), 6)
        report = ReportInput("t", [named(run)])
        said, markdown = "".join(read(html(report)).text), "".join(RENDERERS["markdown"].render(report, []))
        for line in lines:
            self.assertIn(line, said)
            self.assertIn(f"\n    {line}\n", markdown)
        apart = "".join(read(html(ReportInput("t", [named(divided()), named(burst(), "lone")]))).text)
        for stage in ("link wait, run", "transfer, run", "decode queue, run", "More of run"):
            self.assertIn(stage, apart)
        self.assertNotIn("More of lone", apart)

    def test_failures_are_told_in_their_own_words(self) -> None:
        text = " ".join(read(html(ReportInput("t", [named(streams())]))).text)
        self.assertIn("out of memory", text)
        self.assertIn("http_500", text)

    def test_two_runs_share_every_picture_and_are_named_in_it(self) -> None:
        content = html(materials()["two"])
        for figure in draw(materials()["two"]):
            part = content.split(f'<figure id="{figure.name}">')[1].split("</figure>")[0]
            if figure.name != "roofline":
                self.assertIn("plain", part)
                self.assertIn("cached", part)

    def test_it_is_light_and_dark_and_fits_a_phone(self) -> None:
        content = html(materials()["burst"])
        self.assertIn("prefers-color-scheme:dark", content)
        self.assertIn('name="viewport" content="width=device-width', content)
        self.assertIn("@media (max-width:", PAGE_STYLE)
        light, dark = re.findall(r"--page:(#\w+)", PAGE_STYLE)
        self.assertNotEqual(light, dark)
        for colour in re.findall(r"var\((--\w+)\)", PAGE_STYLE):
            self.assertGreaterEqual(PAGE_STYLE.count(f"{colour}:"), 2 if colour != "--c" else 1, colour)

    def test_no_width_is_fixed_beyond_a_phone(self) -> None:
        for width in re.findall(r'<svg[^>]* width="(\d+)"', html(materials()["burst"])):
            self.assertLessEqual(int(width), 40)

    def test_whatever_the_run_there_is_a_page(self) -> None:
        runs = [random_simulated(seed) for seed in range(12)] + [measured(), measured({"times": []}), streams(9, 1)]
        for number, run in enumerate(runs):
            with self.subTest(run=number):
                self.assertLessEqual(read(html(ReportInput("t", [named(run)]))).tags, KNOWN)

    def test_the_same_run_gives_the_same_bytes(self) -> None:
        report = ReportInput("t", [named(burst())])
        self.assertEqual("".join(page(report, draw(report))), html(report))

    @in_full
    def test_a_hundred_thousand_requests_stay_under_two_megabytes(self) -> None:
        run = simulate(requests=100_000, rate=3000, prompt_tokens="16", output_tokens="2-5", max_num_seqs=32)
        content = html(ReportInput("t", [named(run, "t", "ttft_p95=20ms")]))
        self.assertLess(len(content.encode()), 2_000_000)
        self.assertEqual(set(re.findall(r'<figure id="(\w+)"', content)), {*FIGURES} - {"curve", "scan"})


if __name__ == "__main__":
    unittest.main()
