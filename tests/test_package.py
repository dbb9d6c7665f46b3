"""The house itself: who imports whom, what is imported from outside, and what the papers beside the code promise."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import unittest
from functools import cache
from pathlib import Path

import servesim
from tests.extent import once

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "servesim"

# Imports go down this list, never up: a later room may import an earlier one.
ROOMS = (
    "guide errors stats units console interrupts inputs catalog cost workload runs summary wire config engine "
    "fleet client report serve live comparison calibrate diagnose plan cli"
).split()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def room(path: Path) -> str:
    """Return the room that a module of the package belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def dotted(path: Path, package: Path = PACKAGE) -> str:
    """Return the name of a module below its package: `engine.blocks`, and "" for the package itself."""
    return ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def import_graph(package: Path) -> dict[str, set[str]]:
    """Return what each file of `package` imports of it, wherever the import stands: under TYPE_CHECKING, in a function.

    The package's own `__init__` is left out: it names the public functions of every room, and resolves them lazily.
    """
    files = {dotted(path, package): path for path in sorted(package.rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        graph[name] = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found = [f"{node.module}.{alias.name}" for alias in node.names]
                found = [each if each.partition(".")[2] in files else node.module for each in found]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            else:
                continue
            graph[name].update(each.partition(".")[2] for each in found if each.split(".")[0] == package.name)
    graph.pop("", None)
    return {name: (targets & files.keys()) - {name, ""} for name, targets in graph.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of files that reach each other by their imports, each sorted."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def imports(path: Path) -> list[tuple[int, str]]:
    """Return (line, dotted module) of every import in `path`, those that only a type checker sees included."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, f"{'.' * node.level}{node.module or ''}"))
    return found


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def tracked_files() -> list[Path]:
    """Return the project's own text files: git's list where there is a git, else the tree without dot folders."""
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False)
    if done.returncode == 0 and done.stdout:
        return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    return [p for p in ROOT.rglob("*") if p.is_file() and ".cache" not in p.parts and ".git" not in p.parts]


@once
class TheHouse(unittest.TestCase):
    def test_every_module_belongs_to_a_room(self) -> None:
        strangers = {room(p) for p in modules()} - {*ROOMS, "__init__", "__main__"}
        self.assertEqual(strangers, set())

    def test_imports_go_down_the_list_and_never_up(self) -> None:
        rank = {name: order for order, name in enumerate(ROOMS)}
        up = {
            (name, target)
            for name, targets in import_graph(PACKAGE).items()
            for target in targets
            if name != "__main__" and rank[target.split(".")[0]] > rank[name.split(".")[0]]
        }
        self.assertEqual(up, set())

    def test_no_files_import_each_other_in_a_circle(self) -> None:
        self.assertEqual(circles(import_graph(PACKAGE)), [])

    def test_a_circle_is_found_wherever_its_imports_stand(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "planted"
            package.mkdir()
            (package / "__init__.py").write_text("")
            (package / "one.py").write_text("from planted.two import name\n")
            (package / "two.py").write_text("if TYPE_CHECKING:\n    from planted import three\n")
            (package / "three.py").write_text("def late():\n    import planted.one\n")
            (package / "four.py").write_text("import planted.one\n")
            self.assertEqual(circles(import_graph(package)), [["one", "three", "two"]])

    def test_no_relative_imports(self) -> None:
        for path in modules():
            for line, name in imports(path):
                self.assertFalse(name.startswith("."), f"{path.relative_to(ROOT)}:{line} imports {name!r}")

    def test_only_the_standard_library_is_imported(self) -> None:
        for path in [*modules(), *sorted((ROOT / "tests").glob("*.py")), *sorted((ROOT / "fixtures").glob("*.py"))]:
            for line, name in imports(path):
                with self.subTest(module=str(path.relative_to(ROOT)), line=line):
                    self.assertIn(name.split(".")[0], {*sys.stdlib_module_names, "servesim", "tests", "fixtures"})

    def test_every_module_says_what_it_is(self) -> None:
        silent = [str(path.relative_to(ROOT)) for path in modules() if not ast.get_docstring(parsed(path))]
        self.assertEqual(silent, [])


class ThePapers(unittest.TestCase):
    def test_the_version_is_the_top_of_the_changelog(self) -> None:
        top = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertIsNotNone(top)
        assert top is not None
        self.assertEqual(top[1], servesim.__version__)

    def test_nothing_is_installed_to_run_and_the_tools_are_pinned(self) -> None:
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        self.assertIn("\ndependencies = []\n", text)
        self.assertIn('requires-python = ">=3.10"', text)
        self.assertRegex(text, r'\ndev = \["mypy==[0-9.]+", "ruff==[0-9.]+"\]\n')

    def test_no_file_names_a_path_of_one_machine(self) -> None:
        # Spelt so that this file does not name one either.
        absolute = re.compile(rf"(?<![\w.])/(?:{'work'}|{'root'}|{'home'}/\w+|{'Users'}/\w+)/[\w.]")
        for path in tracked_files():
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            match = absolute.search(text)
            self.assertIsNone(match, f"{path.relative_to(ROOT)} names {match and match[0]}")


class ThePublicNames(unittest.TestCase):
    def test_every_public_name_resolves_and_is_listed(self) -> None:
        for name in ("plan_capacity", "CapacityError", "step_seconds", "critical_batch", "BlockPool", "simulate"):
            with self.subTest(name=name):
                self.assertTrue(callable(getattr(servesim, name)))
                self.assertIn(name, dir(servesim))

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        with self.assertRaises(AttributeError):
            servesim.nonsense  # noqa: B018

    def test_a_capacity_error_is_a_run_error(self) -> None:
        from servesim.errors import RunError

        self.assertTrue(issubclass(servesim.CapacityError, RunError))

    def test_importing_servesim_imports_no_room(self) -> None:
        code = "import sys, servesim; print(sorted(m for m in sys.modules if m.startswith('servesim.')))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        self.assertEqual(done.stdout, "[]\n")


if __name__ == "__main__":
    unittest.main()
