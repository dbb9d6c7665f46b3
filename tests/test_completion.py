"""Completion, asked of the shells themselves: bash always, zsh and fish where they are."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import unittest
from importlib import import_module
from pathlib import Path

from servesim.catalog.hardware import HARDWARE
from servesim.cli.completion import SHELLS, verbs
from servesim.cli.main import VERBS
from servesim.config.engine import POLICIES
from tests.command import ROOT, servesim

ASK_BASH = """
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_servesim
printf '%s\\n' "${COMPREPLY[@]}"
"""

ASK_ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
ask() { zpty -w shell "$1"; }
ask 'PS1=; unset zle_bracketed_paste; autoload -Uz compinit; compinit -u -d "$TMPDIR/dump"; source "$SCRIPT"'
ask 'zstyle ":completion:*" list-prompt ""; zstyle ":completion:*" menu no; LISTMAX=1000; stty columns 200'
ask 'echo rea""dy'
while zpty -r shell line; do [[ $line == *ready* ]] && break; done
sleep "$PAUSE"
zpty -w -n shell "$WORDS"$'\\t\\t'
zpty -w -n shell $'\\C-u'
zpty -w shell $'\\necho fin""ished'
while zpty -r shell line; do print -r -- $line; [[ $line == *finished* ]] && break; done
"""


class Completion(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def script(self, shell: str) -> str:
        said = servesim("completion", shell)
        self.assertEqual((said.code, said.err), (0, ""))
        path = self.folder / f"completion.{shell}"
        path.write_text(said.out, encoding="utf-8")
        return str(path)

    def shell(self, name: str, *argv: str, **environment: str) -> str:
        path = shutil.which(name)
        if path is None:
            self.skipTest(f"no {name} here")
        clean = {"PATH": "/usr/bin:/bin", "TMPDIR": str(self.folder), "HOME": str(self.folder), "TERM": "xterm"}
        done = subprocess.run(
            [path, *argv], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60, env=clean | environment
        )
        self.assertEqual(done.stderr, "")
        return done.stdout

    def bash(self, *words: str) -> set[str]:
        script = f'source "{self.script("bash")}"\n{ASK_BASH}'
        return set(self.shell("bash", "--norc", "-c", script, "bash", "servesim", *words).split())

    def test_bash_completes_verbs_options_names_and_files(self) -> None:
        self.assertEqual(self.bash(""), {*VERBS, "--help", "--version"})
        self.assertEqual(self.bash("cap"), {"capacity"})
        self.assertEqual(self.bash("simulate", "--policy", ""), set(POLICIES))
        self.assertEqual(self.bash("simulate", "--pol"), {"--policy"})
        self.assertEqual(self.bash("capacity", "--hardware", "l4-"), {n for n in HARDWARE if n.startswith("l4-")})
        self.assertEqual(self.bash("trace", "descr"), {"describe"})
        self.assertEqual(self.bash("simulate", "--trace", "fixtures/bur"), {"fixtures/burst.jsonl"})
        self.assertEqual(self.bash("compare", "fixtures/bur"), {"fixtures/burst.jsonl"})
        self.assertEqual(self.bash("completion", ""), set(SHELLS))
        self.assertEqual(self.bash("simulate", "--requests", ""), set())
        self.assertEqual(self.bash("nonsense", ""), set())

    def test_fish_completes_the_same(self) -> None:
        source = f"source {self.script('fish')}; "

        def asked(line: str) -> set[str]:
            told = self.shell("fish", "--no-config", "-c", f"{source}complete -C '{line}'")
            return {each.split("\t")[0] for each in told.splitlines()}

        self.assertEqual(asked("servesim cap"), {"capacity"})
        self.assertEqual(asked("servesim simulate --policy "), set(POLICIES))
        self.assertEqual(asked("servesim simulate --pol"), {"--policy"})
        self.assertIn("fixtures/burst.jsonl", asked("servesim simulate --trace fixtures/bur"))

    def test_zsh_completes_the_same(self) -> None:
        script = self.script("zsh")

        def asked(line: str, word: str) -> str:
            for pause_s in ("0", "0.5", "2", "5"):  # what is typed before the line editor is up is no completion
                told = self.shell("zsh", "-f", "-c", ASK_ZSH, SCRIPT=script, WORDS=line, PAUSE=pause_s)
                if word in told:
                    break
            return told

        self.assertIn("capacity", asked("servesim cap", "capacity"))
        told = asked("servesim simulate --policy ", "priority")
        for policy in POLICIES:
            self.assertIn(policy, told)

    def test_every_option_of_every_verb_is_there(self) -> None:
        known = verbs(VERBS, {"completion": tuple(SHELLS)})
        scripts = {shell: write(known) for shell, write in SHELLS.items()}
        for verb in known:
            flags = {flag for option in verb.options for flag in option.flags}
            parser = import_module(f"servesim.cli.{verb.name}").build_parser()
            self.assertEqual(flags, set(parser._option_string_actions))
            for flag in flags:
                self.assertIn(flag, scripts["bash"])
                self.assertIn(f"{flag}[", scripts["zsh"])
                self.assertIn(f"-l {flag[2:]} " if flag.startswith("--") else f"-s {flag[1:]} ", scripts["fish"])

    def test_an_unknown_shell_is_refused(self) -> None:
        said = servesim("completion", "powershell")
        self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1))
        self.assertEqual(servesim("completion").code, 2)


if __name__ == "__main__":
    unittest.main()
