"""The long guides, Markdown: printed by `servesim help TOPIC`, and read as they are on the repository's page.

Knows no verb and no figure: what a guide shows was printed by its own commands, and the tests run them.
"""

from __future__ import annotations

from pathlib import Path

TOPICS = (
    "lessons",
    "incident",
    "measure",
    "knobs",
    "plan",
    "calibrate",
    "reports",
    "serve",
    "workloads",
    "models",
    "fleet",
    "overload",
    "features",
    "verbs",
    "model",
    "evidence",
    "extend",
    "peers",
)
"""Every guide, in the order in which `servesim help` lists them: `TOPIC.md` in this folder."""


def guide(topic: str) -> str:
    """Return the text of the guide `topic`, one of `TOPICS`."""
    return (Path(__file__).parent / f"{topic}.md").read_text(encoding="utf-8")


def title(topic: str) -> str:
    """Return the first line of a guide: what it is about."""
    return guide(topic).partition("\n")[0].removeprefix("# ")
