"""`servesim help TOPIC`: the guides, and the help of a verb."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.cli.main import VERBS, dispatch
from servesim.cli.output import result_to
from servesim.cli.parser import Parser
from servesim.guide import TOPICS, guide, title
from servesim.units import suggest

EXAMPLES = ("servesim help", "servesim help lessons", "servesim help knobs | less", "servesim help simulate")


def build_parser() -> Parser:
    parser = Parser(
        "help",
        "The guides: one of them as Markdown, or what each is about. A verb that has no guide\nprints its --help.",
        EXAMPLES,
        (),
    )
    parser.usage = "servesim help [TOPIC|VERB]"
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a guide or a verb; all guides in a row each without")
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().read(argv)
    if flags is None:
        return 0
    topic = flags.get("topic")
    if topic in VERBS and topic not in TOPICS:
        return dispatch([topic, "--help"])
    if topic is not None and topic not in TOPICS:
        raise suggest("topic", topic, (*TOPICS, *VERBS))
    with result_to(None) as write:
        write(listing() if topic is None else guide(topic))
    return 0


def listing() -> str:
    """Return what each guide is about, a line each."""
    width = max(map(len, TOPICS))
    rows = "".join(f"  {topic:<{width}}  {title(topic)}\n" for topic in TOPICS)
    return f"guides, printed by servesim help TOPIC:\n\n{rows}\nservesim --help lists the verbs\n"
