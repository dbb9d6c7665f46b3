"""The names that `servesim` offers to programs, and the examples of every module: they say what stands there."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
import unittest
from importlib import import_module
from types import FunctionType

import servesim
from servesim.comparison.compare import Comparison
from tests.command import ROOT

NAMES = servesim._HOMES


class ThePublicNames(unittest.TestCase):
    def test_the_page_of_examples_is_right_and_names_them_all(self) -> None:
        self.assertEqual(doctest.testmod(servesim).failed, 0)
        page = servesim.__doc__ or ""
        for name in NAMES:
            self.assertIn(name, page)

    def test_a_type_checker_sees_what_the_interpreter_finds(self) -> None:
        tree = ast.parse((ROOT / "servesim" / "__init__.py").read_text(encoding="utf-8"))
        seen = {
            alias.asname: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname
        }
        self.assertEqual(seen, NAMES)

    def test_every_argument_and_result_has_a_type_and_every_name_a_docstring(self) -> None:
        for name in NAMES:
            with self.subTest(name=name):
                value = getattr(servesim, name)
                self.assertTrue(value.__doc__)
                if isinstance(value, FunctionType):
                    code = value.__code__
                    arguments = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], "return"}
                    self.assertLessEqual(arguments, value.__annotations__.keys())

    def test_one_name_imports_its_room_and_not_the_others(self) -> None:
        code = "import sys; from servesim import read_run; print('servesim.engine.engine' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        self.assertEqual(done.stdout, "False\n")

    def test_runs_are_compared_as_they_are(self) -> None:
        run = servesim.simulate(requests=30, output_tokens="5")
        same = servesim.compare(run, run)
        self.assertIsInstance(same, Comparison)
        self.assertEqual({row.verdict for row in same.rows.values()} - {None}, {"same"})
        self.assertEqual((same.a.label, same.b.label), ("A", "B"))


class TheExamples(unittest.TestCase):
    def test_the_examples_of_every_module_are_right(self) -> None:
        for path in sorted((ROOT / "servesim").rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8") and path.name != "__main__.py":
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                with self.subTest(module=name):
                    self.assertEqual(doctest.testmod(import_module(name)).failed, 0)


if __name__ == "__main__":
    unittest.main()
