"""The command lines of real servers, in both directions: from a planned server to its flags, from flags to a server.

One table says which flag of which server is which of servesim's options; what a server has no word for is named, not
invented. Sources: `vllm serve --help` of 0.32, llama.cpp's tools/server/README.md (build 11434), SGLang's server
arguments (docs.sglang.io; from its documentation, not observed).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from servesim.catalog.models import MODELS, repositories
from servesim.catalog.weights import WEIGHT_FORMATS
from servesim.config.build import Server
from servesim.config.option import checks_of
from servesim.config.server import ServerSpec
from servesim.errors import InputError
from servesim.units import shown

VLLM, LLAMA_CPP, SGLANG = "vllm", "llama.cpp", "sglang"


@dataclass(frozen=True, slots=True)
class Flag:
    """A server's flag: its names, servesim's field, and the value that a switch stands for (None: it takes one)."""

    names: tuple[str, ...]
    field: str
    value: Any = None


FLAGS: dict[str, tuple[Flag, ...]] = {
    VLLM: (
        Flag(("--model",), "model"),
        Flag(("--tensor-parallel-size", "-tp"), "tensor_parallel_size"),
        Flag(("--pipeline-parallel-size", "-pp"), "pipeline_parallel_size"),
        Flag(("--data-parallel-size", "-dp"), "data_parallel_size"),
        Flag(("--quantization", "-q"), "quantization"),
        Flag(("--kv-cache-dtype",), "kv_cache_dtype"),
        Flag(("--gpu-memory-utilization",), "gpu_memory_utilization"),
        Flag(("--max-model-len",), "max_model_len"),
        Flag(("--max-num-seqs",), "max_num_seqs"),
        Flag(("--max-num-batched-tokens",), "max_num_batched_tokens"),
        Flag(("--block-size",), "block_size"),
        Flag(("--num-gpu-blocks-override",), "kv_blocks"),
        Flag(("--long-prefill-token-threshold",), "long_prefill_token_threshold"),
        Flag(("--scheduling-policy",), "policy"),
        Flag(("--enable-expert-parallel", "-ep"), "expert_parallel", True),
        Flag(("--enable-prefix-caching",), "prefix_caching", True),
        Flag(("--no-enable-prefix-caching",), "prefix_caching", False),
        Flag(("--enable-chunked-prefill",), "chunked_prefill", True),
        Flag(("--no-enable-chunked-prefill",), "chunked_prefill", False),
        Flag(("--async-scheduling",), "async_scheduling", True),
        Flag(("--no-async-scheduling",), "async_scheduling", False),
    ),
    LLAMA_CPP: (
        Flag(("-m", "--model"), "model"),
        Flag(("-np", "--parallel"), "max_num_seqs"),
        Flag(("-c", "--ctx-size"), "kv_tokens"),
        Flag(("-b", "--batch-size"), "max_num_batched_tokens"),
        Flag(("-ctk", "--cache-type-k"), "kv_cache_dtype"),
        Flag(("--cache-prompt",), "prefix_caching", True),
        Flag(("--no-cache-prompt",), "prefix_caching", False),
    ),
    SGLANG: (
        Flag(("--model-path", "--model"), "model"),
        Flag(("--tp-size", "--tensor-parallel-size", "--tp"), "tensor_parallel_size"),
        Flag(("--pp-size", "--pipeline-parallel-size"), "pipeline_parallel_size"),
        Flag(("--quantization",), "quantization"),
        Flag(("--kv-cache-dtype",), "kv_cache_dtype"),
        Flag(("--mem-fraction-static",), "gpu_memory_utilization"),
        Flag(("--context-length",), "max_model_len"),
        Flag(("--max-running-requests",), "max_num_seqs"),
        Flag(("--chunked-prefill-size",), "max_num_batched_tokens"),
        Flag(("--page-size",), "block_size"),
        Flag(("--max-total-tokens",), "kv_tokens"),
        Flag(("--disable-radix-cache",), "prefix_caching", False),
    ),
}

_F16 = {"f16": "fp16", "f32": "fp32"}  # ggml's names


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlags:
    """What a command line says: the server, servesim's options in it, and the flags that say nothing of load."""

    dialect: str
    values: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def parse_flags(text: str) -> ServerFlags:
    """Return what the command line `text` asks for. Flags that no load depends on (ports, keys) are listed as ignored.

    >>> parse_flags("vllm serve Qwen/Qwen3-8B --max-num-seqs=64 --port 8000").values
    {'model': 'qwen3-8b', 'max_num_seqs': 64}
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"flags cannot be read: {str(error).lower()}") from error
    dialect, rest = _dialect(words)
    known = {name: flag for flag in FLAGS[dialect] for name in flag.names}
    values: dict[str, Any] = {}
    ignored: list[str] = []
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("-"):
            if dialect == VLLM and "model" not in values and not ignored:
                values["model"] = name  # vllm serve MODEL
            continue
        flag = known.get(name.replace("_", "-") if name.startswith("--") else name)
        if flag is None:
            ignored.append(name)
            continue
        if flag.value is not None:
            values[flag.field] = flag.value
            continue
        if not equals:
            if not rest:
                raise InputError(f"{name} has no value in the flags")
            value = rest.pop(0)
        values[flag.field] = value
    return ServerFlags(dialect=dialect, values=_checked(values), ignored=tuple(ignored))


def _dialect(words: list[str]) -> tuple[str, list[str]]:
    """Return the server that the words start, and the words behind its name."""
    for position, word in enumerate(words):
        program = os.path.basename(word)
        following = words[position + 1 : position + 2]
        if program == "vllm" and following == ["serve"]:
            return VLLM, words[position + 2 :]
        if program == "sglang" and following == ["serve"]:
            return SGLANG, words[position + 2 :]
        if program.startswith("vllm.entrypoints"):
            return VLLM, words[position + 1 :]
        if program.startswith("sglang.launch_server"):
            return SGLANG, words[position + 1 :]
        if program in ("llama-server", "llama-server.exe"):
            return LLAMA_CPP, words[position + 1 :]
    raise InputError(
        f"flags is {shown(' '.join(words))}, must begin with vllm serve, llama-server or python -m sglang.launch_server"
    )


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as servesim checks them; what it has no word for (a quantisation, `auto`) is left out."""
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if value == "auto" or (name == "quantization" and value not in WEIGHT_FORMATS):
            continue
        if name == "model":
            value = preset_of(value)
        if name == "kv_cache_dtype":
            value = _F16.get(value, value)
        if name == "kv_tokens" and value == "0":  # llama.cpp: the model's own
            continue
        checked[name] = checks_of(ServerSpec)[name](value, name)
    return checked


def preset_of(name: str) -> str:
    """Return the preset of a repository, or of the same name as one, else the name itself."""
    if "/" in name and name in repositories():
        return repositories()[name]
    last = os.path.basename(name.rstrip("/")).lower()
    return last if last in MODELS else name


# From a server to command lines


def command_lines(server: Server, *, disaggregated: bool = False) -> dict[str, list[str] | None]:
    """Return what starts `server` under vLLM, llama.cpp and SGLang; None where one has no such server.

    `disaggregated`: prefill and decode on servers of their own, a command each.
    """
    vllm, llama, sglang = _vllm(server), _llama_cpp(server), _sglang(server)
    if not disaggregated:
        return {VLLM: [vllm], LLAMA_CPP: None if llama is None else [llama], SGLANG: [sglang]}
    transfer = shlex.quote('{"kv_connector":"NixlConnector","kv_role":"kv_both"}')
    return {
        VLLM: [f"{vllm} --kv-transfer-config {transfer}"] * 2,
        LLAMA_CPP: None,
        SGLANG: [f"{sglang} --disaggregation-mode {role}" for role in ("prefill", "decode")],
    }


def model_name(preset: str) -> str:
    """Return the repository of a preset, or what was given."""
    return next((name for name, known in repositories().items() if known == preset), preset)


def _joined(program: str, parts: Sequence[tuple[str, Any]]) -> str:
    """Return the program and those of its flags that have a value: True is a switch, False and None are left out."""
    words = [program]
    for flag, value in parts:
        if value is None or value is False:
            continue
        words.append(flag if value is True else f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}")
    return " ".join(words)


def _given(value: Any, default: Any) -> Any:
    return None if value == default else value


def _vllm(server: Server) -> str:
    spec = server.spec
    by_hand = spec.kv_blocks or (server.config.num_blocks + 1 if spec.kv_tokens is not None else None)
    return _joined(
        f"vllm serve {shlex.quote(model_name(spec.model))}",
        (
            ("--tensor-parallel-size", _given(spec.tensor_parallel_size, 1)),
            ("--pipeline-parallel-size", _given(spec.pipeline_parallel_size, 1)),
            ("--data-parallel-size", _given(spec.data_parallel_size, 1)),
            ("--enable-expert-parallel", spec.expert_parallel),
            ("--quantization", spec.quantization),
            ("--kv-cache-dtype", _kv_dtype(server)),
            ("--gpu-memory-utilization", spec.gpu_memory_utilization),
            ("--num-gpu-blocks-override", by_hand),
            ("--block-size", spec.block_size),
            ("--max-model-len", spec.max_model_len),
            ("--max-num-seqs", server.config.max_num_seqs),
            ("--max-num-batched-tokens", server.config.max_num_batched_tokens),
            ("--long-prefill-token-threshold", spec.long_prefill_token_threshold or None),
            ("--scheduling-policy", _given(spec.policy, "fcfs")),
            ("--enable-prefix-caching" if spec.prefix_caching else "--no-enable-prefix-caching", True),
            ("--no-enable-chunked-prefill", not spec.chunked_prefill),
            ("--async-scheduling" if spec.async_scheduling else "--no-async-scheduling", True),
        ),
    )


def _llama_cpp(server: Server) -> str | None:
    spec = server.spec
    if spec.pipeline_parallel_size * spec.data_parallel_size > 1:
        return None
    cache = {"bf16": None, "fp16": None, "fp8": "q8_0"}.get(server.model.kv_dtype, server.model.kv_dtype)
    model = spec.model if spec.model.endswith(".gguf") else f"{os.path.basename(spec.model)}.gguf"
    return _joined(
        f"llama-server -m {shlex.quote(model)}",
        (
            ("--n-gpu-layers", 999 if server.hardware.kind != "cpu" else None),
            ("--split-mode", "row" if spec.tensor_parallel_size > 1 else None),
            ("--parallel", server.config.max_num_seqs),
            ("--kv-unified", spec.slots is None),
            ("--ctx-size", server.plan.kv_tokens),
            ("--batch-size", server.config.max_num_batched_tokens),
            ("--ubatch-size", min(server.config.max_num_batched_tokens, 2048)),
            ("--cache-type-k", cache),
            ("--cache-type-v", cache),
            ("--no-cache-prompt", not spec.prefix_caching),
            ("--metrics", True),
        ),
    )


def _sglang(server: Server) -> str:
    spec = server.spec
    chunk = server.config.max_num_batched_tokens if spec.chunked_prefill else -1
    return _joined(
        f"python -m sglang.launch_server --model-path {shlex.quote(model_name(spec.model))}",
        (
            ("--tp-size", _given(spec.tensor_parallel_size, 1)),
            ("--pp-size", _given(spec.pipeline_parallel_size, 1)),
            ("--dp-size", _given(spec.data_parallel_size, 1)),
            ("--quantization", spec.quantization),
            ("--kv-cache-dtype", {"fp8": "fp8_e4m3"}.get(_kv_dtype(server) or "", _kv_dtype(server))),
            ("--mem-fraction-static", spec.gpu_memory_utilization),
            ("--max-total-tokens", server.plan.kv_tokens if spec.kv_tokens or spec.kv_blocks else None),
            ("--page-size", spec.block_size),
            ("--context-length", spec.max_model_len),
            ("--max-running-requests", server.config.max_num_seqs),
            ("--chunked-prefill-size", chunk),
            ("--disable-radix-cache", not spec.prefix_caching),
            ("--enable-metrics", True),
        ),
    )


def _kv_dtype(server: Server) -> str | None:
    return server.model.kv_dtype if server.model.kv_dtype not in ("bf16", "fp16") else None
