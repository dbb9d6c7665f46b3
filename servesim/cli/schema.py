"""`servesim schema`: the JSON Schema of each kind of document and file that servesim writes."""

from __future__ import annotations

from servesim.cli.options import JSON, OUTPUT, QUIET
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.option import Group
from servesim.report.documents import document, to_json
from servesim.report.schemas.registry import SCHEMAS, identity, schema

EXAMPLES = (
    "servesim schema",
    "servesim schema summary -o summary.schema.json",
    "servesim schema run",
)


def build_parser() -> Parser:
    parser = Parser(
        "schema",
        "The JSON Schemas of what servesim writes, one row each; or the one that is named, whole in itself.\n"
        "A document names its own in its key `schema`: servesim.NAME/NUMBER.",
        EXAMPLES,
        (Group("output", (JSON, OUTPUT, QUIET)),),
        usage="[NAME] [options]",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a schema; all of them in a row each without one")
    return parser


def run(call: Call) -> Result:
    name = call.values.get("name")
    if name is not None:
        return Result(document=lambda: schema(name), text=lambda: to_json(schema(name)))
    known = [
        {"name": each, "id": identity(each), "about": found.about, "lines": found.lines}
        for each, found in SCHEMAS.items()
    ]
    width = max(map(len, map(identity, SCHEMAS)))
    return Result(
        document=lambda: document("schema", {}, {"schemas": known}),
        text=lambda: "".join(f"{identity(each):<{width}}  {found.about}\n" for each, found in SCHEMAS.items()),
    )
