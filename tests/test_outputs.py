"""The documents that ship say what is so: commands run, flags and metrics exist, figures are the printed ones."""

from __future__ import annotations

import re
import unittest

from servesim.diagnose.rules import RULES
from tests.command import in_shell, workspace
from tests.extent import in_full
from tests.guide_runner import Runner
from tests.guides import fences, flags_of_block, known_flags, unknown_metrics, without_fences
from tests.page_commands import matches, sessions
from tests.page_tables import filled
from tests.write_outputs import OUTPUTS, stale_figures, tables

SKILL, PROMPT = OUTPUTS / "skill-llm-serving-tuning.md", OUTPUTS / "prompt-explain-serving-metrics.md"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in (SKILL, PROMPT)}


class Outputs(unittest.TestCase):
    def test_only_what_can_be_regenerated_is_there(self) -> None:
        self.assertEqual({path.name for path in OUTPUTS.iterdir()}, set(TEXTS))

    @in_full
    def test_every_command_prints_what_stands_below_it(self) -> None:
        for name, text in TEXTS.items():
            with workspace() as folder:
                for command, expected in sessions(text):
                    with self.subTest(document=name, command=command):
                        got = in_shell(command, folder)
                        self.assertTrue(matches(expected, got.out), f"{command} now prints\n{got.out}{got.err}")

    @in_full
    def test_every_command_for_a_server_runs_against_serve(self) -> None:
        for name, text in TEXTS.items():
            with workspace() as folder, Runner(folder) as runner:
                for kind, body in fences(text):
                    if kind != "sh run":
                        continue
                    for command, said in runner.run(body):
                        with self.subTest(document=name, command=command):
                            self.assertEqual(said.code, 0, said.err + said.out)

    def test_every_flag_exists(self) -> None:
        known = known_flags()
        for name, text in TEXTS.items():
            prose = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]*", without_fences(text)))
            self.assertEqual(prose - known, set(), name)
            for kind, body in fences(text):
                for command, unknown in flags_of_block(kind, body):
                    with self.subTest(document=name, command=command):
                        self.assertEqual(unknown, set())

    def test_every_metric_exists(self) -> None:
        for name, text in TEXTS.items():
            self.assertEqual(unknown_metrics(text), set(), name)

    def test_every_figure_of_a_worked_answer_is_printed_in_its_document(self) -> None:
        for name, text in TEXTS.items():
            self.assertEqual(stale_figures(text), [], f"{name}: run make outputs, and mend the prose")
        self.assertGreater(TEXTS[PROMPT.name].count("### Answer to example"), 1)

    def test_a_figure_that_no_output_shows_is_stale(self) -> None:
        told = (
            "## Example\n\n```console\n$ x\nttft 1,234.5 ms  12%\n```\n\nIt took 1,234.5 ms, 12% more, then 99.9 ms.\n"
        )
        self.assertEqual(stale_figures(told), ["99.9 ms"])

    def test_the_tables_are_the_registries(self) -> None:
        text = TEXTS[SKILL.name]
        for name, body in tables().items():
            text, found = filled(text, name, body)
            self.assertEqual(found, 1, name)
        self.assertEqual(text, TEXTS[SKILL.name], "a registry has changed: run make outputs")

    def test_the_runbook_has_a_row_for_every_rule_and_a_column_for_every_server(self) -> None:
        table = tables()["symptoms"]
        for heading in ("vLLM", "llama.cpp", "SGLang"):
            self.assertIn(f"| {heading} |", table)
        for rule in RULES:
            self.assertIn(f"| {rule.symptom} |", table)

    def test_every_stage_says_what_is_good_and_bad_and_when_to_stop(self) -> None:
        stages = re.findall(r"^## \d\. (.*?)\n(.*?)(?=^## )", TEXTS[SKILL.name], re.MULTILINE | re.DOTALL)
        self.assertEqual(len(stages), 7)
        for title, body in stages[:-1]:
            with self.subTest(stage=title):
                self.assertRegex(body, r"```(?:console|sh run)\n")
                for word in ("**Good**", "**Bad**", "**Stop**"):
                    self.assertIn(word, body)

    def test_the_skill_has_the_front_matter_that_assistants_read(self) -> None:
        head = re.match(r"---\nname: ([a-z-]{1,64})\ndescription: (.{1,1024})\n---\n", TEXTS[SKILL.name])
        assert head is not None
        self.assertEqual(head[1], "llm-serving-tuning")


if __name__ == "__main__":
    unittest.main()
