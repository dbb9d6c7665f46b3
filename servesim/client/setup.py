"""What a server reports about how it was started: its model, its limits, its cache. Kept with a run, used by `--like`.

Facts come from `/v1/models` (with llama.cpp's `meta`), `/props`, `/slots`, `/version`, `/get_server_info` and vLLM's
`cache_config_info`; a route that is not offered, or answers nonsense, reports nothing. What no server reports (vLLM's
`max_num_seqs` and token budget among it) stays unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from servesim.catalog.models import MODELS
from servesim.catalog.servers import dialect_of
from servesim.client.fetch import Fetcher, FetchError
from servesim.client.scraper import RawPage
from servesim.client.target import Target
from servesim.client.window import setup_facts, wanted_names
from servesim.config.workload import WorkloadSpec
from servesim.units import MAX_COUNT

Facts = dict[str, Any]

NOTED_CACHED_SHARE = 0.05  # of the prompt tokens of a measured run: more than that, and what is made of it says so


def read_setup(target: Target, page: RawPage | None = None, *, timeout_s: float = 3.0) -> Facts:
    """Ask the server for its setup facts; `page` is its metrics page, where it has one.

    Keys, each only where it is known: `dialect, version, model, models, params, weights_bytes, quantization,
    max_model_len, context_trained, slots, slot_tokens, kv_tokens, num_gpu_blocks, block_size, prefix_caching,
    gpu_memory_utilization, kv_cache_dtype, max_num_seqs, max_num_batched_tokens`.
    """
    facts: Facts = {}
    with Fetcher(target, timeout_s) as fetcher:
        ask = _JsonFetcher(fetcher)
        models = ask("/v1/models")
        _read_models(models, facts)
        metrics = None if page is None else page.parse(wanted_names())
        dialect = None if metrics is None else dialect_of(metrics.samples)
        name = dialect.name if dialect else _dialect_of_models(models)
        if metrics is not None:
            _read_cache_config(setup_facts(metrics), facts)
        if name in (None, "llama.cpp"):
            _read_props(ask("/props"), facts)
            _read_slots(ask("/slots"), facts)
            name = name or ("llama.cpp" if facts.get("slots") else None)
        if name in (None, "vllm"):
            facts["version"] = facts.get("version") or _text(ask("/version"), "version")
        if name in (None, "sglang"):
            name = "sglang" if _read_sglang(ask("/get_server_info"), facts) else name
        facts["dialect"] = name
    return {key: value for key, value in facts.items() if value is not None}


def pick_model(target: Target, *, timeout_s: float = 10.0) -> str | None:
    """Return the model that the server serves, for a run without `--model`: the first that `/v1/models` lists.

    None where the server does not tell: most servers with one model do without the field. Raises RunError where
    nobody is there.
    """
    facts: Facts = {}
    with Fetcher(target, timeout_s) as fetcher:
        try:
            answer = fetcher.get("/v1/models")
        except FetchError as error:
            if error.kind in ("refused", "unresolvable"):
                raise
            return None
    _read_models(answer.json() if answer.ok else None, facts)
    model: str | None = facts.get("model")
    return model


def simulate_options(facts: Mapping[str, Any]) -> Facts:
    """Return the options of `simulate`, by their config keys, that a server's setup facts stand for.

    What the server does not tell is left to the defaults; under vLLM to vLLM's own (`like_vllm`).
    """
    options: Facts = {}
    dialect = facts.get("dialect")
    if dialect == "llama.cpp":
        options["slots"] = facts.get("slots")
        options["kv_tokens"] = facts.get("kv_tokens")
    elif dialect == "vllm":
        options["like_vllm"] = True
        options["rules"] = _rules(facts.get("version"))
        options["kv_blocks"] = facts.get("num_gpu_blocks")
    else:
        options["kv_tokens"] = facts.get("kv_tokens")
        options["max_num_seqs"] = facts.get("max_num_seqs")
        options["max_num_batched_tokens"] = facts.get("max_num_batched_tokens")
    for key in ("max_model_len", "block_size", "prefix_caching"):
        options.setdefault(key, facts.get(key))
    if dialect == "llama.cpp":
        options.pop("max_model_len")  # a slot's share of the cache is the limit
    return {key: value for key, value in options.items() if value is not None}


def like_run(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Facts:
    """Return the options of `simulate` that stand for a saved run: its server as far as it reported, and its workload.

    `config` and `facts` are the run's `config` and `setup`. The device is not among what a server reports.
    """
    workload = {field.name: config[field.name] for field in fields(WorkloadSpec) if config.get(field.name) is not None}
    model = known_model(facts)
    return {**simulate_options(facts), **workload, **({} if model is None else {"model": model})}


def known_model(facts: Mapping[str, Any]) -> str | None:
    """Return the preset of the model that a server says it serves, None where no name fits.

    >>> known_model({"model": "meta-llama/Llama-3.1-8B-Instruct"})
    'llama-3.1-8b'
    >>> known_model({"model": "smollm2-135m", "quantization": "Q4_1"})
    'smollm2-135m-q4_1'
    """
    name = str(facts.get("model", "")).lower().rsplit("/", 1)[-1].removesuffix(".gguf")
    name = re.sub(r"[-_.](instruct|it|chat|hf)\b", "", name)
    quantization = str(facts.get("quantization") or "").lower()
    return next((candidate for candidate in (f"{name}-{quantization}", name) if candidate in MODELS), None)


def _rules(version: object) -> str | None:
    """Return the rule set of a vLLM version: 0.14 to 0.18 schedule as 0.18 does, later ones as 0.32."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})", version) if isinstance(version, str) else None
    if match is None:
        return None
    return "vllm-0.18" if (int(match[1]), int(match[2])) < (0, 19) else "vllm-0.32"


class _JsonFetcher:
    """Asks for one JSON after another; of a server that does not answer one in time, nothing more is asked."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._silent = False

    def __call__(self, route: str) -> Any:
        """Return a route's JSON, None where it is not offered."""
        if self._silent:
            return None
        try:
            answer = self._fetcher.get(route)
        except FetchError as error:
            self._silent = error.kind == "timeout"
            return None
        return answer.json() if answer.ok else None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any, key: str) -> str | None:
    found = _object(value).get(key)
    return found if isinstance(found, str) and found else None


def _count(value: Any, key: str) -> int | None:
    found = _object(value).get(key)
    if isinstance(found, str) and re.fullmatch(r"[0-9]{1,16}", found):  # a metric's label
        found = int(found)
    return found if type(found) is int and 0 < found <= MAX_COUNT else None


def _read_models(answer: Any, facts: Facts) -> None:
    models = _objects(_object(answer).get("data"))
    if not models:
        models = _objects(_object(answer).get("models"))  # Ollama's and older servers' form
    names = [name for model in models if (name := _text(model, "id") or _text(model, "name"))]
    if not names:
        return
    facts["model"] = names[0]
    if len(names) > 1:
        facts["models"] = names
    first = models[0]
    meta = first.get("meta")
    facts["max_model_len"] = _count(first, "max_model_len")
    facts["slot_tokens"] = _count(meta, "n_ctx")
    facts["context_trained"] = _count(meta, "n_ctx_train")
    facts["params"] = _count(meta, "n_params")
    facts["weights_bytes"] = _count(meta, "size")
    facts["quantization"] = _text(meta, "ftype")


def _dialect_of_models(answer: Any) -> str | None:
    owners = {_text(model, "owned_by") for model in _objects(_object(answer).get("data"))}
    return next(
        (
            name
            for owner, name in (("llamacpp", "llama.cpp"), ("vllm", "vllm"), ("sglang", "sglang"))
            if owner in owners
        ),
        None,
    )


def _read_props(answer: Any, facts: Facts) -> None:
    facts["slots"] = _count(answer, "total_slots")
    facts["version"] = _text(answer, "build_info")
    settings = _object(answer).get("default_generation_settings")
    facts["slot_tokens"] = _count(settings, "n_ctx") or facts.get("slot_tokens")
    _total_slots(facts)


def _read_slots(answer: Any, facts: Facts) -> None:
    slots = _objects(answer)
    if slots:
        facts["slots"] = len(slots)
        facts["slot_tokens"] = _count(slots[0], "n_ctx") or facts.get("slot_tokens")
    _total_slots(facts)


def _total_slots(facts: Facts) -> None:
    if facts.get("slots") and facts.get("slot_tokens"):
        facts["kv_tokens"] = facts["slots"] * facts["slot_tokens"]


def _read_cache_config(labels: Mapping[str, str], facts: Facts) -> None:
    facts["num_gpu_blocks"] = _count(labels, "num_gpu_blocks")
    facts["block_size"] = _count(labels, "block_size")
    facts["kv_cache_dtype"] = labels.get("cache_dtype")
    if labels.get("enable_prefix_caching") in ("True", "False"):
        facts["prefix_caching"] = labels["enable_prefix_caching"] == "True"
    try:
        facts["gpu_memory_utilization"] = float(labels["gpu_memory_utilization"])
    except (KeyError, ValueError):
        pass


def _read_sglang(answer: Any, facts: Facts) -> bool:
    """Read SGLang's `/get_server_info` (from its documentation, not observed)."""
    if not _object(answer):
        return False
    facts["version"] = _text(answer, "version")
    facts["max_num_seqs"] = _count(answer, "max_running_requests")
    facts["max_num_batched_tokens"] = _count(answer, "chunked_prefill_size")
    facts["kv_tokens"] = _count(answer, "max_total_num_tokens") or _count(answer, "max_total_tokens")
    facts["block_size"] = _count(answer, "page_size")
    facts["max_model_len"] = _count(answer, "context_length") or facts.get("max_model_len")
    return "mem_fraction_static" in answer
