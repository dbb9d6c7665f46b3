"""`--like RUN`: a measured server and its load as the options of a simulation, as far as the server reports them."""

from __future__ import annotations

from typing import Any

from servesim.client.setup import NOTED_CACHED_SHARE, known_model, like_run
from servesim.errors import InputError
from servesim.inputs import recognise
from servesim.report.documents import summary_document
from servesim.runs.reader import read_run
from servesim.summary.summary import summarize


def like_options(path: str) -> dict[str, Any]:
    """Return the options that stand for the run in `path`: what `loadgen` saved, or printed with `--json`.

    A length that was given as one number is the one that the server counted. Raises InputError for a file that
    holds no measured run.
    """
    document = recognise(path).json_object()
    config, facts = document.get("config"), document.get("setup")
    if document.get("source") != "measured" or not isinstance(config, dict) or not isinstance(facts, dict):
        raise InputError(f"{path}: is no measured run; give a file that loadgen --save or loadgen --json wrote")
    options = like_run(config, facts)
    if config.get("client_timeout_s") is not None:
        options["client_timeout_s"] = config["client_timeout_s"]
    return {**options, **{name: counted for name, (_, counted) in _counted(config, _summary(path, document)).items()}}


def like_note(path: str, values: dict[str, Any]) -> str:
    """Return the sentence that says what a simulation like the run in `path` takes from it, and what it cannot."""
    document = recognise(path).json_object()
    facts = document.get("setup") or {}
    reported = ("model", "slots", "kv_tokens", "kv_blocks", "block_size", "max_model_len", "max_num_seqs", "rules")
    taken = ", ".join(f"{name} {values[name]}" for name in reported if name in values)
    note = f"like {path}: {taken or 'the server reports nothing of itself'}; no server reports its device (--hardware)"
    if facts.get("model") and known_model(facts) is None and "model" not in values:
        note += f", and {facts['model']!r} is no known model (--model)"
    summary = _summary(path, document)
    for name, (given, counted) in _counted(document["config"], summary).items():
        if values.get(name) == counted:
            note += f"; {name} {counted} as counted there, {given} were asked for"
    cached = _cached_share(summary)
    if cached > NOTED_CACHED_SHARE and not values.get("prefix_caching"):
        note += f"; {cached:.0%} of the prompt tokens were cached there, and here all of them are computed"
    return note


def _counted(config: dict[str, Any], summary: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return (given, counted on average) of each length that was to be one number and became another.

    A chat template adds to short prompts, and an answer may end by itself.
    """
    found: dict[str, tuple[str, str]] = {}
    completed = (summary.get("requests") or {}).get("completed") or 0
    for name, kind in (("prompt_tokens", "prompt"), ("output_tokens", "output")):
        given, total = str(config.get(name)), (summary.get("tokens") or {}).get(kind) or 0
        counted = round(total / completed) if completed else 0
        if given.isdigit() and counted and counted != int(given):
            found[name] = given, str(counted)
    return found


def _cached_share(summary: dict[str, Any]) -> float:
    """Return the share of the prompt tokens that the server had cached; 0 where it did not count them."""
    tokens = summary.get("tokens") or {}
    cached, prompt = tokens.get("cached") or 0, tokens.get("prompt") or 0
    return cached / prompt if prompt > 0 else 0.0


def _summary(path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the summary in `document`, or that of the saved run whose header it is."""
    if document.get("kind") != "header":
        return document
    return summary_document("loadgen", {}, summarize(read_run(path)))
