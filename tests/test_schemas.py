"""Every document and line that servesim writes is what its JSON Schema says, and the schema tells of every key."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from servesim.cli.main import VERBS
from servesim.report.documents import document
from servesim.report.schemas.registry import PARTS, SCHEMAS, identity, schema
from servesim.summary.summary import Summary
from tests.command import servesim
from tests.documents import Written
from tests.json_schema import problems

SPEAKS_NO_JSON = {"help", "serve", "watch", "completion"}  # their result is not a document
SWEPT = {"concurrency", "rate", "output_tokens", "kv_offload", "link_bytes_per_s", "hardware"}


def untold(found: list[str]) -> list[str]:
    """Return the problems but for swept values, which stand in a row under the names of their options."""
    return [each for each in found if not each.endswith("no schema tells of it") or _key(each) not in SWEPT]


def _key(problem: str) -> str:
    return problem.partition(":")[0].rpartition(".")[2]


class EverythingWritten(unittest.TestCase):
    documents: list[tuple[str, dict[str, Any]]]
    lines: list[tuple[str, dict[str, Any]]]

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder:
            written = Written(Path(folder))
            cls.documents = list(written.documents())
            cls.lines = list(written.runs())

    def test_every_document_is_what_its_schema_says(self) -> None:
        for command, found in self.documents:
            with self.subTest(command=command):
                name = found["schema"].removeprefix("servesim.").partition("/")[0]
                self.assertEqual(found["schema"], identity(name))
                self.assertEqual(untold(problems(schema(name), found, strict=True)), [])

    def test_every_line_of_a_file_is_what_its_schema_says(self) -> None:
        schemas = {name: schema(name) for name in SCHEMAS if SCHEMAS[name].lines}
        for where, line in self.lines:
            with self.subTest(line=where):
                name = "plan-shard" if where.startswith("shard") else "run"
                self.assertEqual(problems(schemas[name], line, strict=True), [])
        self.assertEqual(
            {line["kind"] for _, line in self.lines},
            {
                *(
                    "header",
                    "engine",
                    "facts",
                    "replica",
                    "link",
                    "steps",
                    "request",
                    "warmup",
                    "gauge",
                    "footer",
                    "edge",
                )
            },
        )

    def test_no_kind_of_document_is_left_out(self) -> None:
        seen = {found["schema"] for _, found in self.documents} | {
            line["schema"] for _, line in self.lines if "schema" in line
        }
        self.assertEqual(seen, {identity(name) for name in SCHEMAS})

    def test_every_verb_is_tried(self) -> None:
        self.assertEqual({found.get("command", "calibrate") for _, found in self.documents}, {*VERBS} - SPEAKS_NO_JSON)


class TheSchemas(unittest.TestCase):
    def test_a_wrong_document_is_refused(self) -> None:
        good = json.loads(servesim("capacity", "--json").out)
        told = schema("capacity")
        self.assertEqual(problems(told, good), [])
        for key, value in (("num_blocks", 1.5), ("model", None), ("warnings", [1]), ("schema", "servesim.capacity/2")):
            self.assertEqual(len(problems(told, good | {key: value})), 1, key)
        del good["num_blocks"]
        self.assertEqual(problems(told, good), ["$.num_blocks: is missing"])

    def test_the_summarys_schema_has_the_fields_of_the_summary(self) -> None:
        fields = {field.name for field in dataclasses.fields(Summary)} - {"partial"}
        self.assertEqual({name.removesuffix("?") for name in PARTS["summary"]}, fields)

    def test_every_part_is_used(self) -> None:
        used = set().union(*(schema(name)["$defs"] for name in SCHEMAS))
        self.assertEqual(used, set(PARTS))

    def test_the_number_in_a_document_is_that_of_the_registry(self) -> None:
        for name, found in SCHEMAS.items():
            if found.framed:
                self.assertEqual(document("any", {}, {}, schema=name)["schema"], identity(name))

    def test_the_verb_lists_and_prints_them(self) -> None:
        listed = servesim("schema")
        self.assertEqual([line.split()[0] for line in listed.out.splitlines()], list(map(identity, SCHEMAS)))
        for name in SCHEMAS:
            self.assertEqual(json.loads(servesim("schema", name).out), schema(name))
        wrong = servesim("schema", "sumary")
        self.assertEqual((wrong.code, wrong.out), (2, ""))
        self.assertIn("did you mean 'summary'?", wrong.err)


if __name__ == "__main__":
    unittest.main()
