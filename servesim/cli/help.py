"""`servesim help TOPIC`: the guides, and the help of a verb."""

from __future__ import annotations

from importlib import import_module

from servesim.cli.main import VERBS
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.guide import TOPICS, guide, title
from servesim.units import suggest

EXAMPLES = ("servesim help", "servesim help lessons", "servesim help knobs | less", "servesim help simulate")


def build_parser() -> Parser:
    parser = Parser(
        "help",
        "The guides: one of them as Markdown, or what each is about. A verb that has no guide prints its --help.",
        EXAMPLES,
        (),
        usage="[TOPIC|VERB]",
    )
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a guide or a verb; all guides in a row each without")
    return parser


def run(call: Call) -> Result:
    topic = call.values.get("topic")
    if topic is None:
        return Result(text=listing)
    if topic in TOPICS:
        return Result(text=lambda: guide(topic))
    if topic in VERBS:
        parser: Parser = import_module(f"servesim.cli.{topic}").build_parser()
        return Result(text=lambda: parser.help_text(whole=False))
    raise suggest("topic", topic, (*TOPICS, *VERBS))


def listing() -> str:
    """Return what each guide is about, a line each."""
    width = max(map(len, TOPICS))
    rows = "".join(f"  {topic:<{width}}  {title(topic)}\n" for topic in TOPICS)
    return f"guides, printed by servesim help TOPIC:\n\n{rows}\nservesim --help lists the verbs\n"
