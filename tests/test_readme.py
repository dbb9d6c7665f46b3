"""What the README and the guides say is so: commands run and print what stands there, tables are the registries'."""

from __future__ import annotations

import doctest
import re
import unittest

from servesim.cli.help import listing
from servesim.cli.main import VERBS
from servesim.client.flavour import API_FLAVOURS
from servesim.config.engine import POLICIES, RULES
from servesim.config.fleet import LINK_SCOPES, TRANSFER_OVERLAPS
from servesim.cost.model import COST_MODELS
from servesim.fleet.router import ROUTERS
from servesim.guide import TOPICS, guide, title
from servesim.report.charts import FIGURES
from servesim.report.renderers import RENDERERS
from servesim.workload.arrivals import ARRIVALS
from servesim.workload.traces.trace import TRACE_FORMATS
from tests.command import ROOT, in_shell, servesim, workspace
from tests.extent import in_full
from tests.guide_runner import Runner
from tests.guides import fences, flags_of_block, known_flags, unknown_metrics, without_fences
from tests.page_commands import PAGES, README, matches, sessions
from tests.page_tables import tables, with_tables

TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES}
ALL = "".join(TEXTS.values())


def anchors(text: str) -> set[str]:
    """Return the anchors that the headings of a page make."""
    headings = re.findall(r"^#+ (.*)$", without_fences(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


class EveryPage(unittest.TestCase):
    @in_full
    def test_every_command_prints_what_stands_below_it(self) -> None:
        found = 0
        for path, text in TEXTS.items():
            with workspace() as folder:
                for command, expected in sessions(text):
                    with self.subTest(page=path.name, command=command):
                        got = in_shell(command, folder).out
                        self.assertTrue(matches(expected, got), f"{command} now prints\n{got}")
                    found += 1
        self.assertGreater(found, 25)

    @in_full
    def test_every_command_that_is_marked_to_run_runs(self) -> None:
        found = 0
        for path, text in TEXTS.items():
            blocks = [body for kind, body in fences(text) if kind == "sh run"]
            if not blocks:
                continue
            with workspace() as folder, Runner(folder) as runner:
                for body in blocks:
                    for command, said in runner.run(body):
                        with self.subTest(page=path.name, command=command):
                            self.assertEqual(said.code, 0, said.err + said.out)
                    found += 1
        self.assertGreater(found, 3)

    def test_its_tables_are_the_registries(self) -> None:
        for path, text in TEXTS.items():
            self.assertTrue(with_tables(text) == text, f"{path.name}: a registry has changed: run make golden")

    def test_every_table_stands_on_one_page(self) -> None:
        for name in tables():
            with self.subTest(table=name):
                self.assertEqual(ALL.count(f"<!-- table: {name} -->\n"), 1)

    def test_every_registry_entry_is_named(self) -> None:
        """Devices and models are not: `servesim hardware` and `servesim models` list those."""
        registries = (VERBS, COST_MODELS, RULES, POLICIES, ARRIVALS, TRACE_FORMATS, API_FLAVOURS)
        for registry in (*registries, RENDERERS, FIGURES, ROUTERS, LINK_SCOPES, TRANSFER_OVERLAPS):
            for name in registry:
                with self.subTest(name=name):
                    self.assertRegex(ALL, rf"`(?:--[a-z-]+ )?{re.escape(name)}`")

    def test_every_flag_it_names_exists(self) -> None:
        known = known_flags() | {"--help", "--help-all"}
        for path, text in TEXTS.items():
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]*", without_fences(text)))
            self.assertEqual(named - known, set(), path.name)
            for kind, body in fences(text):
                if kind in ("console", "sh", "sh run"):
                    for command, unknown in flags_of_block(kind, body):
                        with self.subTest(page=path.name, command=command):
                            self.assertEqual(unknown, set())

    def test_every_metric_it_names_exists(self) -> None:
        self.assertEqual(unknown_metrics(ALL), set())

    def test_its_links_lead_somewhere(self) -> None:
        for path, text in TEXTS.items():
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                with self.subTest(page=path.name, target=target):
                    if target.startswith("https://"):
                        continue
                    name, _, anchor = target.partition("#")
                    page = path.parent / name if name else path
                    self.assertTrue(page.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(page.read_text(encoding="utf-8")))

    def test_its_python_runs(self) -> None:
        for path, text in TEXTS.items():
            for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
                test = doctest.DocTestParser().get_doctest(code, {}, path.name, None, None)
                printed: list[str] = []
                doctest.DocTestRunner(verbose=False).run(test, out=printed.append)
                self.assertEqual("".join(printed), "")

    def test_every_topic_that_it_points_to_exists(self) -> None:
        for topic in re.findall(r"servesim help ([a-z]+)", ALL):
            self.assertIn(topic, (*TOPICS, *VERBS))


class TheReadme(unittest.TestCase):
    def test_it_can_be_read_in_a_quarter_of_an_hour(self) -> None:
        lines = TEXTS[README].splitlines()
        self.assertLessEqual(len(lines), 300)
        self.assertLessEqual(max(len(line) for line in lines if not line.startswith(("|", "!["))), 120)

    def test_it_points_to_every_guide(self) -> None:
        for topic in TOPICS:
            self.assertIn(f"(servesim/guide/{topic}.md)", TEXTS[README])


class TheGuides(unittest.TestCase):
    def test_every_file_of_the_folder_is_listed_and_has_a_title(self) -> None:
        files = {path.stem for path in (ROOT / "servesim" / "guide").glob("*.md")}
        self.assertEqual(files, set(TOPICS))
        for topic in TOPICS:
            self.assertRegex(guide(topic), r"\A# \S.*\n\n")

    def test_help_lists_prints_and_knows_what_was_meant(self) -> None:
        self.assertEqual(servesim("help").out, listing())
        for topic in TOPICS:
            self.assertIn(f"  {topic} ", listing())
            self.assertIn(title(topic), listing())
            self.assertEqual(servesim("help", topic).out, guide(topic))
        for topic in set(TOPICS) & set(VERBS):
            self.assertIn(f"`servesim {topic} --help`", guide(topic))
        wrong = servesim("help", "lesson")
        self.assertEqual((wrong.code, wrong.err), (2, "error: unknown topic 'lesson'; did you mean 'lessons'?\n"))

    def test_the_name_of_a_verb_prints_the_help_of_the_verb(self) -> None:
        for verb in ("capacity", "help"):
            self.assertEqual(servesim("help", verb).out, servesim(verb, "--help").out)

    def test_the_laws_are_numbered_without_a_gap(self) -> None:
        laws = guide("model").split("## What always holds")[1].split("##")[0]
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", laws, re.MULTILINE)]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))
        self.assertGreaterEqual(len(numbers), 8)


if __name__ == "__main__":
    unittest.main()
