"""What the README says is so: its commands run and print what stands there, its tables are the registries'."""

from __future__ import annotations

import doctest
import re
import unittest

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.cli.main import VERBS
from servesim.client.flavour import API_FLAVOURS
from servesim.config.engine import POLICIES, RULES
from servesim.config.fleet import LINK_SCOPES, TRANSFER_OVERLAPS
from servesim.cost.model import COST_MODELS
from servesim.fleet.router import ROUTERS
from servesim.report.charts import FIGURES
from servesim.report.renderers import RENDERERS
from servesim.workload.arrivals import ARRIVALS
from servesim.workload.traces.trace import TRACE_FORMATS
from tests.command import ROOT, in_shell, workspace
from tests.extent import in_full
from tests.guide_runner import Runner
from tests.guides import fences, flags_of_block, known_flags, unknown_metrics, without_fences
from tests.readme_commands import matches, sessions
from tests.readme_tables import with_tables

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
_HEADING = re.compile(r"^##+ (.*)$", re.MULTILINE)


class Readme(unittest.TestCase):
    @in_full
    def test_every_command_prints_what_stands_below_it(self) -> None:
        found = sessions(TEXT)
        self.assertGreater(len(found), 5)
        with workspace() as folder:
            for command, expected in found:
                with self.subTest(command=command):
                    got = in_shell(command, folder).out
                    self.assertTrue(matches(expected, got), f"{command} now prints\n{got}")

    @in_full
    def test_every_command_that_is_marked_to_run_runs(self) -> None:
        blocks = [body for kind, body in fences(TEXT) if kind == "sh run"]
        self.assertGreater(len(blocks), 3)
        with workspace() as folder, Runner(folder) as runner:
            for body in blocks:
                for command, said in runner.run(body):
                    with self.subTest(command=command):
                        self.assertEqual(said.code, 0, said.err + said.out)

    def test_its_tables_are_the_registries(self) -> None:
        self.assertTrue(with_tables(TEXT) == TEXT, "a registry has changed: run python3 -m tests.readme_tables")

    def test_every_registry_entry_is_named(self) -> None:
        registries = (VERBS, HARDWARE, MODELS, COST_MODELS, RULES, POLICIES, ARRIVALS, TRACE_FORMATS, API_FLAVOURS)
        for registry in (*registries, RENDERERS, FIGURES, ROUTERS, LINK_SCOPES, TRANSFER_OVERLAPS):
            for name in registry:
                named = re.search(rf"`(?:--[a-z-]+ )?{re.escape(name)}`", TEXT)
                self.assertIsNotNone(named, f"the README does not name {name}")

    def test_every_flag_it_names_exists(self) -> None:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]*", without_fences(TEXT)))
        self.assertEqual(named - known_flags() - {"--help"}, set())
        for kind, body in fences(TEXT):
            if kind in ("console", "sh", "sh run"):
                for command, unknown in flags_of_block(kind, body):
                    with self.subTest(command=command):
                        self.assertEqual(unknown, set())

    def test_every_metric_it_names_exists(self) -> None:
        self.assertEqual(unknown_metrics(TEXT), set())

    def test_its_links_lead_somewhere(self) -> None:
        headings = {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in _HEADING.findall(TEXT)}
        for target in re.findall(r"\]\(([^)\s]+)\)", TEXT):
            with self.subTest(target=target):
                if target.startswith("#"):
                    self.assertIn(target[1:], headings)
                elif not target.startswith("https://"):
                    self.assertTrue((ROOT / target).exists())

    def test_its_python_runs(self) -> None:
        for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
            test = doctest.DocTestParser().get_doctest(code, {}, "README", None, None)
            told: list[str] = []
            doctest.DocTestRunner(verbose=False).run(test, out=told.append)
            self.assertEqual("".join(told), "")

    def test_the_laws_are_numbered_without_a_gap(self) -> None:
        laws = TEXT.split("## What always holds")[1].split("##")[0]
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", laws, re.MULTILINE)]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))
        self.assertGreaterEqual(len(numbers), 8)


if __name__ == "__main__":
    unittest.main()
