"""What the README says is so: its commands run and print what stands there, its tables are the registries'."""

from __future__ import annotations

import doctest
import re
import unittest
from importlib import import_module

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.catalog.servers import SERVERS
from servesim.cli.main import VERBS
from servesim.client.flavour import API_FLAVOURS
from servesim.cost.model import COST_MODELS
from servesim.engine.config import RULES
from servesim.engine.policy import POLICIES
from servesim.fleet.link import OVERLAPS, SCOPES
from servesim.fleet.router import ROUTERS
from servesim.report.figures import FIGURES
from servesim.report.renderers import RENDERERS
from servesim.workload.arrivals import ARRIVALS
from servesim.workload.trace import TRACE_FORMATS
from tests.command import ROOT, in_shell
from tests.readme_commands import matches, sessions
from tests.readme_tables import with_tables

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


class Readme(unittest.TestCase):
    def test_every_command_prints_what_stands_below_it(self) -> None:
        found = sessions(TEXT)
        self.assertGreater(len(found), 5)
        for command, expected in found:
            with self.subTest(command=command):
                got = in_shell(command).out
                self.assertTrue(matches(expected, got), f"{command} now prints\n{got}")

    def test_its_tables_are_the_registries(self) -> None:
        self.assertTrue(with_tables(TEXT) == TEXT, "a registry has changed: run python3 -m tests.readme_tables")

    def test_every_registry_entry_is_named(self) -> None:
        registries = (VERBS, HARDWARE, MODELS, COST_MODELS, RULES, POLICIES, ARRIVALS, TRACE_FORMATS, API_FLAVOURS)
        for registry in (*registries, RENDERERS, FIGURES, ROUTERS, SCOPES, OVERLAPS):
            for name in registry:
                named = re.search(rf"`(?:--[a-z-]+ )?{re.escape(name)}`", TEXT)
                self.assertIsNotNone(named, f"the README does not name {name}")

    def test_every_flag_it_names_exists(self) -> None:
        flags = {"--help", "--save-detailed", "--kv-unified", "--ubatch-size"}  # but for the first, other tools'
        for server in SERVERS.values():
            flags |= {flag for knob in server.knobs.values() for flag in re.findall(r"--[a-z-]+", knob)}
        for verb in VERBS:
            flags |= import_module(f"servesim.cli.{verb}").build_parser()._option_string_actions.keys()
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.sub(r"```sh.*?```", "", TEXT, flags=re.DOTALL)))
        self.assertEqual(named - flags, set())

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
