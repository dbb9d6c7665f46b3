"""The wheel and the sdist, alike byte for byte whoever builds them, and the proof that they install.

`python3 -m tests.dist [--twice] [--install PYTHON ...]`. The sdist holds every tracked file beside its PKG-INFO; the
wheel is built from the unpacked sdist by the pinned setuptools, with the time of the last commit as the time of every
file (SOURCE_DATE_EPOCH, if it is set, instead). `--twice` builds again elsewhere under another umask and compares.
`--install` installs the wheel in a clean virtual environment of that interpreter and runs `tests/installed.py` there.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".cache" / "dist-tools"
BACKEND = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def run(*argv: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command that must succeed and return what it printed."""
    environment = {**os.environ, **environment}
    done = subprocess.run(argv, cwd=cwd, env=environment, umask=0o022, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{argv[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def tools() -> Path:
    """Return the interpreter of a virtual environment that has the pinned build backend."""
    pins = re.findall(r'^dist = \["(.*)"\]$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    python, noted = TOOLS / "bin" / "python", TOOLS / "pins"
    if not python.exists() or not noted.exists() or noted.read_text(encoding="utf-8") != str(pins):
        shutil.rmtree(TOOLS, ignore_errors=True)
        venv.create(TOOLS, with_pip=True)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins)
        noted.write_text(str(pins), encoding="utf-8")
    return python


def epoch() -> int:
    """Return the time that every file gets."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run("git", "log", "-1", "--format=%ct").strip())


def tracked() -> list[str]:
    """Return the project's own files."""
    return [name for name in run("git", "ls-files", "-z").split("\0") if name and (ROOT / name).is_file()]


def build(folder: Path, python: Path) -> list[Path]:
    """Build both into `folder` and return them."""
    at = epoch()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        for name in tracked():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
        metadata = Path(scratch) / "metadata"
        metadata.mkdir()
        info = run(python, "-c", BACKEND, "prepare_metadata_for_build_wheel", metadata, cwd=tree).split()[-1]
        shutil.copy(metadata / info / "METADATA", tree / "PKG-INFO")
        shutil.rmtree(tree / "servesim.egg-info", ignore_errors=True)
        shutil.rmtree(tree / "build", ignore_errors=True)
        for path in tree.rglob("*"):  # what the wheel says of a file's mode must not be that of one machine
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        sdist = folder / f"{info.removesuffix('.dist-info')}.tar.gz"
        sdist.write_bytes(packed(tree, sdist.name.removesuffix(".tar.gz"), at))
        wheel = run(python, "-c", BACKEND, "build_wheel", folder, cwd=tree, SOURCE_DATE_EPOCH=str(at)).split()[-1]
    return [sdist, folder / wheel]


def packed(tree: Path, name: str, at: int) -> bytes:
    """Return the files of `tree` as a gzip of a tar in which nothing depends on the machine or the moment."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in tree.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(tree).as_posix()}")
            entry.size, entry.mtime, entry.mode = path.stat().st_size, at, path.stat().st_mode & 0o777
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return gzip.compress(content.getvalue(), mtime=at)


def install(wheel: Path, interpreter: str, python: Path) -> None:
    """Install `wheel` in a clean virtual environment of `interpreter` and see that it works away from the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "venv"
        run(interpreter, "-m", "venv", "--without-pip", home)
        own = home / "bin" / "python"
        quiet = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
        run(python, "-m", "pip", "--python", own, "install", *quiet, wheel)
        shutil.copy(ROOT / "tests" / "installed.py", folder)
        print(run(own, "installed.py", cwd=Path(folder)), end="")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--twice", action="store_true", help="build again and compare")
    parser.add_argument("--install", nargs="+", default=[], metavar="PYTHON", help="interpreters to install it in")
    options = parser.parse_args()
    python, dist = tools(), ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    built = build(dist, python)
    for path in built:
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.relative_to(ROOT))
    lacking = {name for name in tracked() if name.startswith("servesim/")} - {*zipfile.ZipFile(built[1]).namelist()}
    if lacking:
        print(f"the wheel lacks {', '.join(sorted(lacking))}")
        return 1
    if options.twice:
        before = os.umask(0o077)
        try:
            with tempfile.TemporaryDirectory() as folder:
                again = build(Path(folder), python)
                differing = [a.name for a, b in zip(built, again, strict=True) if a.read_bytes() != b.read_bytes()]
        finally:
            os.umask(before)
        if differing:
            print(f"built again, {' and '.join(differing)} differ")
            return 1
        print("built again: the same bytes")
    for interpreter in options.install:
        install(built[1], interpreter, python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
