"""Options that belong to no spec, and the groups of those that describe a server; each is declared once."""

from __future__ import annotations

from servesim.config.option import Option, count, groups_of, seconds, text
from servesim.config.server import ServerSpec

DEVICE, LIMITS, QUEUE, TIERS, SPECULATION, ADAPTERS, COST = groups_of(ServerSpec)
SERVER_GROUPS = (DEVICE, LIMITS, QUEUE, SPECULATION, TIERS, ADAPTERS, COST)

CONFIG = Option("--config", "config_file", "take every option from a document servesim wrote; flags win", text, "FILE")
LIKE = Option("--like", "like", "start from a run that loadgen measured: its server and its load", text, "RUN")
JSON = Option("--json", "json", "print one JSON document instead of text", common=True)
OUTPUT = Option(
    "--output",
    "output",
    "write the result to FILE, whole or not at all",
    text,
    "FILE",
    aliases=("-o",),
    writes=True,
    common=True,
)
PLOT = Option("--plot", "plot", "draw it below the text: sparklines and a histogram, or bars of the rows")
QUIET = Option("--quiet", "quiet", "no progress, no notes, no warnings on stderr")
SAVE = Option(
    "--save", "save", "save every request's record to FILE (JSON lines)", text, "FILE", writes=True, common=True
)
TOKEN_TIMES = Option("--token-times", "token_times", "with --save: also the time of every token")
JOBS = Option("--jobs", "jobs", "processes; the result does not depend on it", count(maximum=1024), default="1")
SLO = Option(
    "--slo",
    "slo",
    "a limit on a share of the requests, such as ttft_p95=500ms; a comma list, or given again",
    text,
    "LIMIT",
    repeat=True,
    common=True,
)
HORIZON = Option(
    "--horizon",
    "horizon_s",
    "stop the simulation at TIME, whatever is unfinished",
    seconds(positive=True),
    "TIME",
    "run to the end",
    swept=True,
)
