"""What a last hard look found and must not come back: dead code and code told twice."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import unittest
from collections import Counter

from tests.command import ROOT
from tests.extent import once

MODULES = sorted((ROOT / "servesim").rglob("*.py"))
USED_ELSEWHERE = {
    "makefile": "http.client calls it",
    "readinto": "io.BufferedReader calls it",
    "BUDGETS": "the tests hold the remedies against it",
    "DEFAULT_HARDWARE": "the tests hold the options' default against it",
    "DEFAULT_MODEL": "the tests hold the options' default against it",
    "MAX_TOKEN_CHARACTERS": "the tests hold the tokenizer against it",
}
"""Names that nothing in the package reads, and why they are there."""

LEAST_TWICE = 250  # characters of a body's syntax tree: below, a twin is a coincidence
MAY_BE_TWINS = {"column", "refuse", "next_due", "_ratio"}  # of rooms that must not know each other, or of one line


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@once
class Tidy(unittest.TestCase):
    def test_every_name_is_used_by_the_package_itself(self) -> None:
        texts = {path: path.read_text(encoding="utf-8") for path in MODULES}
        words: Counter[str] = Counter()
        for text in texts.values():
            words.update(re.findall(r"[A-Za-z_]\w*", text))
        unused = []
        for path, text in texts.items():
            tree = ast.parse(text)
            names = [node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
            names += [
                target.id
                for node in tree.body
                if isinstance(node, (ast.Assign, ast.AnnAssign))
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                if isinstance(target, ast.Name)
            ]
            unused += [
                f"{path.relative_to(ROOT)}: {name}"
                for name in names
                if words[name] == 1 and not name.startswith("__") and name not in USED_ELSEWHERE
            ]
        self.assertEqual(unused, [])

    def test_no_function_is_told_twice(self) -> None:
        told: dict[str, list[str]] = {}
        for path in MODULES:
            for function in functions(ast.parse(path.read_text(encoding="utf-8"))):
                body = function.body[1:] if ast.get_docstring(function) else function.body
                text = "".join(map(ast.dump, body))
                if len(text) >= LEAST_TWICE and function.name not in MAY_BE_TWINS:
                    told.setdefault(text, []).append(f"{path.relative_to(ROOT)}:{function.lineno} {function.name}")
        self.assertEqual([places for places in told.values() if len(places) > 1], [])

    def test_a_help_starts_fast_for_it_imports_next_to_nothing(self) -> None:
        """`make bench` has the milliseconds; a clock here would measure the machine."""
        loaded = modules_after("--help")
        rooms = {name.split(".")[1] for name in loaded if name.startswith("servesim.")}
        self.assertEqual(rooms, {"cli", "console", "errors", "units"})
        self.assertEqual(loaded & {"argparse", "json", "pathlib", "dataclasses", "statistics", "subprocess"}, set())

    def test_what_needs_no_network_imports_none(self) -> None:
        self.assertEqual(modules_after("capacity", "--quiet") & {"ssl", "http.client", "multiprocessing"}, set())


def modules_after(*argv: str) -> set[str]:
    """Run `servesim ARGV` in an interpreter without site packages and return the modules that it imported."""
    code = f"import sys; sys.path.insert(0, '.'); from servesim.cli.main import main; main({argv!r})"
    code += "; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


if __name__ == "__main__":
    unittest.main()
