"""`--like RUN`: a measured server and its load as the options of a simulation, as far as the server told of itself."""

from __future__ import annotations

from typing import Any

from servesim.cli.document import first_object
from servesim.client.setup import known_model, like_run
from servesim.errors import InputError
from servesim.runreader import read_run

CACHED_MATTERS = 0.05


def like_options(path: str) -> dict[str, Any]:
    """Return the options that stand for the run in `path`: what `loadgen` saved, or printed with `--json`.

    Raises InputError for a file that holds no measured run.
    """
    document = first_object(path)
    config, facts = document.get("config"), document.get("setup")
    if document.get("source") != "measured" or not isinstance(config, dict) or not isinstance(facts, dict):
        raise InputError(f"{path}: is no measured run; give a file that loadgen --save or loadgen --json wrote")
    options = like_run(config, facts)
    if config.get("client_timeout_s") is not None:
        options["client_timeout_s"] = config["client_timeout_s"]
    return options


def like_note(path: str, values: dict[str, Any]) -> str:
    """Return the sentence that says what a simulation like the run in `path` takes from it, and what it cannot."""
    document = first_object(path)
    facts = document.get("setup") or {}
    told = ("model", "slots", "kv_tokens", "kv_blocks", "block_size", "max_model_len", "max_num_seqs", "rules")
    taken = ", ".join(f"{name} {values[name]}" for name in told if name in values)
    note = f"like {path}: {taken or 'the server told nothing of itself'}; no server tells its device (--hardware)"
    if facts.get("model") and known_model(facts) is None and "model" not in values:
        note += f", and {facts['model']!r} is no known model (--model)"
    cached = _cached_share(path, document)
    if cached > CACHED_MATTERS and not values.get("prefix_caching"):
        note += f"; {cached:.0%} of the prompt tokens were cached there, and here all of them are computed"
    return note


def _cached_share(path: str, document: dict[str, Any]) -> float:
    """Return the share of the prompt tokens that the server had cached; 0 where it did not count them."""
    if document.get("kind") == "header":
        records = read_run(path).records
        cached, prompt = sum(max(0, tokens) for tokens in records.cached_tokens), sum(records.prompt_tokens)
    else:
        tokens = document.get("tokens") or {}
        cached, prompt = tokens.get("cached") or 0, tokens.get("prompt") or 0
    return cached / prompt if prompt > 0 else 0.0
