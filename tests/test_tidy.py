"""What a last hard look found and must not come back: dead code and code told twice."""

from __future__ import annotations

import ast
import subprocess
import sys
import unittest
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

from servesim.report.schemas.registry import SCHEMAS, schema
from tests.command import ROOT
from tests.extent import once

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "servesim").rglob("*.py"))
}
USED_ELSEWHERE = {
    "makefile": "http.client calls it",
    "readable": "io.BufferedReader calls it",
    "readinto": "io.BufferedReader calls it",
    "malformed_lines": "the tests hold every page that servesim writes against it",
}
"""Names that nothing in the package reads, and why they are there."""

MANY = 12
LEAST_TWICE = 250  # characters of a body's syntax tree: below, a twin is a coincidence
MAY_BE_TWINS = {"column", "refuse", "next_due", "_ratio"}  # of rooms that must not know each other, or of one line


parsed = cache(ast.parse)


@cache
def walked(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in walked(tree) if isinstance(node, ast.FunctionDef)]


def reads(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what a tree reads: ("name", x) for x, ("attribute", x) for y.x and getattr(y, "x"), ("text", x) for "x"."""
    for node in walked(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield "name", node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield "attribute", node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "text", node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            yield from (("attribute", each.value) for each in node.args[1:2] if isinstance(each, ast.Constant))


def definitions(tree: ast.Module) -> Iterator[tuple[str, str, ast.AST]]:
    """Yield the kind, the name and the node of what a module defines: names, attributes, fields of a class."""
    for node in walked(tree):
        for each in node.body if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) else ():
            if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
                yield "attribute" if isinstance(node, ast.ClassDef) else "name", each.name, each
            elif isinstance(each, (ast.Assign, ast.AnnAssign)) and not isinstance(node, ast.FunctionDef):
                kind = "field" if isinstance(node, ast.ClassDef) else "name"
                yield from ((kind, name.id, each) for name in written(each) if isinstance(name, ast.Name))
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            for target in written(node):
                if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                    yield "attribute", target.attr, ast.Pass()


def written(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.AST]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [
        each for target in targets for each in ast.walk(target) if isinstance(getattr(each, "ctx", None), ast.Store)
    ]


def keys(told: Any) -> Iterator[str]:
    """Yield every key of which a JSON Schema tells."""
    if isinstance(told, dict):
        yield from told.get("properties", ())
        told = list(told.values())
    for each in told if isinstance(told, list) else ():
        yield from keys(each)


def unused(modules: Mapping[str, str], documented: Collection[str] = ()) -> list[str]:
    """Return `module.name` of what is defined in `modules`, dotted name to source, and used by none of them.

    A name at the top of a module or in a function is used where its module reads it or another imports it from there,
    an attribute where one of that name is read anywhere, a field of a class also where a text is its name: a key, or
    where it is one of those `documented`, which the reader of a document reads. What a definition reads inside itself
    is no use of it, nor are comments, docstrings and tests.
    """
    trees = {module: parsed(text) for module, text in modules.items()}
    within = {module: Counter(reads(tree)) for module, tree in trees.items()}
    anywhere: Counter[tuple[str, str]] = Counter()
    for read in within.values():
        anywhere.update(read)
    imported = {
        (node.module, alias.name)
        for tree in trees.values()
        for node in walked(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = set()
    for module, tree in trees.items():
        for kind, name, node in definitions(tree):
            if anywhere["attribute", name] > MANY or within[module]["name", name] > MANY:
                continue  # more often than a definition reads itself
            own = Counter(reads(node))
            used = anywhere["attribute", name] > own["attribute", name]
            if kind == "name":
                used |= within[module]["name", name] > own["name", name] or (module, name) in imported
            elif kind == "field":
                used |= within[module]["name", name] > own["name", name] or anywhere["text", name] > 0
                used |= name in documented
            if not used and not name.startswith("__"):
                found.add(f"{module}.{name}")
    return sorted(found)


PLANTED = '''
"""dead_function is named here."""
def dead_function(n):
    """Return nothing.

    >>> dead_function(3)
    """
    return dead_function(n - 1) if n else "dead_function"  # dead_function

DEAD_CONSTANT = 1

class Read:
    dead_field: int = 0
    read_field: int = 0
    key_field: int = 0

    @property
    def read_property(self):
        return 0

    def dead_method(self):
        self.dead_attribute = self.read_attribute = 0
        return self.dead_method()

def read_function():
    read = Read()
    return read_function, read.read_field + read.read_attribute + read.read_property, ["key_field"]
'''


@once
class Tidy(unittest.TestCase):
    def test_every_name_is_used_by_the_package_itself(self) -> None:
        documented = {key for name in SCHEMAS for key in keys(schema(name))}
        found = {name.rpartition(".")[2]: name for name in unused(MODULES, documented)}
        self.assertEqual([name for last, name in found.items() if last not in USED_ELSEWHERE], [])
        self.assertEqual(USED_ELSEWHERE.keys() - found.keys(), set(), "these are no exceptions any more")

    def test_what_is_named_only_inside_itself_or_in_words_is_unused(self) -> None:
        reader = "from planted import read_function\n# dead_function, DEAD_CONSTANT\nread_function()\n"
        names = {name.removeprefix("planted.") for name in unused({"planted": PLANTED, "reader": reader})}
        dead = {"dead_function", "DEAD_CONSTANT", "dead_field", "dead_method", "dead_attribute"}
        self.assertEqual(names, dead)
        self.assertEqual(unused({"planted": PLANTED, "other": "dead_function = 1"})[0], "other.dead_function")

    def test_no_function_is_told_twice(self) -> None:
        told: dict[str, list[str]] = {}
        for module, source in MODULES.items():
            for function in functions(parsed(source)):
                body = function.body[1:] if ast.get_docstring(function) else function.body
                text = "".join(map(ast.dump, body))
                if len(text) >= LEAST_TWICE and function.name not in MAY_BE_TWINS:
                    told.setdefault(text, []).append(f"{module}:{function.lineno} {function.name}")
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
