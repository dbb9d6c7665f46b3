"""What is fuzzed: everything that reads what somebody else wrote. A target takes bytes and raises only what it may."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from servesim.catalog.models import load_model
from servesim.client.prompts import read_prompts
from servesim.client.reading import PartialAnswer
from servesim.client.window import gauge_sample, server_window, setup_facts
from servesim.errors import InputError, ServesimError
from servesim.report.charts import FIGURES
from servesim.report.input import ReportInput, ReportRun
from servesim.report.renderers import RENDERERS
from servesim.runs.reader import read_saved
from servesim.runs.writer import write_run
from servesim.serve.api_request import read_chat, read_completion, read_json
from servesim.serve.http import HttpError, RequestReader
from servesim.summary.summary import summarize
from servesim.wire.faults import ProtocolError, error_from_body
from servesim.wire.http_body import open_body
from servesim.wire.ndjson import open_stream
from servesim.wire.prometheus import parse_page
from servesim.wire.sse import Event
from servesim.workload.traces.trace import TRACE_FORMATS, read_trace, trace_lines
from tests.command import ROOT
from tests.fuzz_inputs import mutate
from tests.gguf_files import GgufFile
from tests.report_runs import hostile, streams
from tests.runs import random_simulated

CAPTURES = ROOT / "fixtures" / "captures"
READERS = ("chat", "completions", "responses", "llamacpp", "ollama", "tgi", "generate")
MOST_SEED_BYTES = 40_000


class FaultError(Exception):
    """Something that must not happen and that no exception said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`run` takes an input; `seeds` makes good ones; `may` is what it may raise."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    may: tuple[type[Exception], ...] = (ServesimError,)
    make: Callable[[random.Random, Sequence[bytes]], bytes] = mutate
    words: bool = False  # the input is a JSON list: the words of a command


@cache
def captured(*patterns: str) -> list[bytes]:
    """Return the captures whose names match, the head of each cut off where it has one."""
    found = [path.read_bytes() for pattern in patterns for path in sorted(CAPTURES.glob(pattern))]
    bodies = [re.split(rb"\r?\n\r?\n", data, maxsplit=1)[-1] if data.startswith(b"HTTP/") else data for data in found]
    return [body[:MOST_SEED_BYTES] for body in bodies if body]


def in_file(name: str, data: bytes, read: Callable[[str], object]) -> None:
    """Give `read` the path of a file that holds `data`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        read(str(path))


# Traces and runs


@cache
def trace_seeds() -> list[bytes]:
    seeds = [path.read_bytes()[:MOST_SEED_BYTES] for path in sorted((ROOT / "fixtures" / "traces").glob("*.[!m]*"))]
    return [*seeds, gzip.compress(seeds[0])]


def read_a_trace(data: bytes) -> None:
    def read(path: str) -> None:
        for told in (None, *TRACE_FORMATS) if len(data) < 2000 else (None,):
            for skip in (False, True):
                try:
                    trace = read_trace(path, trace_format=told, skip_bad_rows=skip, arrivals_required=False)
                except ServesimError as error:
                    one_line(str(error))
                    continue
                for text in (trace.describe(), *trace.notes):
                    one_line(text)
                requests = trace.requests
                if min(requests.prompt_tokens, default=1) < 1 or min(requests.output_tokens, default=1) < 1:
                    raise FaultError("a request without tokens")
                again = "".join(trace_lines(requests)).encode()
                if requests and told is None and not skip:
                    in_file("again.jsonl", again, lambda other: read_trace(other, arrivals_required=False))

    in_file("trace", data, read)


@cache
def run_seeds() -> list[bytes]:
    runs = [random_simulated(seed) for seed in range(6)] + [streams(1, 6), hostile()]
    seeds = []
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            path = Path(folder) / "run.jsonl"
            write_run(str(path), run, "simulate", token_times=True)
            seeds.append(path.read_bytes()[:MOST_SEED_BYTES])
    return seeds


def read_a_run(data: bytes) -> None:
    def read(path: str) -> None:
        run = read_saved(path).run
        summary = summarize(run)
        finite(json.loads(json.dumps(summary.as_dict(), default=str)))
        named = ReportRun(name="a", path=path, command="c", version="v", run=run, summary=summary)
        for renderer in RENDERERS.values():
            for piece in renderer.render(ReportInput("t", [named]), list(FIGURES)):
                piece.encode("utf-8", "backslashreplace")
        write_run(f"{path}.again", run, "simulate", token_times=True)
        if summarize(read_saved(f"{path}.again").run).as_dict()["requests"] != summary.as_dict()["requests"]:
            raise FaultError("a run that was read and written counts other requests")

    in_file("run.jsonl", data, read)


# What servers send


def split(data: bytes, rng: random.Random) -> list[bytes]:
    """Return `data` in pieces."""
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(0, 6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def events_of(stream_format: str, pieces: Sequence[bytes]) -> tuple[list[Event], str]:
    """Return the events in a stream, and what was wrong with it."""
    decoder, events = open_stream(stream_format), []
    try:
        for piece in pieces:
            events += decoder.feed(piece, 0.0)
        events += decoder.eof()
    except ProtocolError as error:
        return events, str(error)
    return events, ""


def read_a_stream(data: bytes) -> None:
    rng = random.Random(len(data))
    for stream_format in ("sse", "ndjson", "json"):
        whole, wrong = events_of(stream_format, [data])
        parted, also_wrong = events_of(stream_format, split(data, rng))
        if bool(wrong) != bool(also_wrong) or (not wrong and parted != whole):
            raise FaultError(f"{stream_format}: split elsewhere, the stream says something else")
        for reader in READERS:
            answer = PartialAnswer(keep_text=True)
            answer.read(whole, reader)
            for count in (answer.usage.prompt_tokens, answer.usage.output_tokens, answer.usage.cached_tokens):
                if count is not None and not 0 <= count < 2**63:
                    raise FaultError(f"{reader}: {count} tokens")


def read_an_error(data: bytes) -> None:
    fact = error_from_body(data)
    for text in fact:
        one_line(text)


def read_a_body(data: bytes) -> None:
    rng = random.Random(len(data))
    heads = (
        [("Transfer-Encoding", "chunked")],
        [("Content-Length", str(len(data) // 2))],
        [("Content-Encoding", "gzip")],
        [("Transfer-Encoding", "chunked"), ("Content-Encoding", "deflate")],
    )
    for head in heads:
        results = []
        for pieces in ([data], split(data, rng)):
            body, read = open_body(200, head), b""
            try:
                for piece in pieces:
                    read += body.feed(piece)
                body.eof()
                results.append((read, body.excess, ""))
            except ProtocolError:
                results.append((b"", b"", "wrong"))
        if results[0] != results[1] and not results[0][2]:
            raise FaultError(f"{head}: split elsewhere, the body is another")


@cache
def body_seeds() -> list[bytes]:
    chunked = b"4\r\nWiki\r\n6;x=1\r\npedia \r\n0\r\nTrailer: 1\r\n\r\n"
    packed = gzip.compress(b"data: {}\n\n" * 20)
    return [chunked, packed, b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed), *captured("vllm-chat-stream.txt")]


def read_a_page(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    page = parse_page(text)
    if len(text) > 20 and random.Random(len(text)).random() < 0.5:
        before = parse_page(text[: len(text) // 2])
        finite(server_window(before, page, [page], window_s=1.0))
    gauge_sample(page)
    setup_facts(page)


# What clients send


def read_requests(data: bytes) -> None:
    rng = random.Random(len(data))
    found = []
    for pieces in ([data], split(data, rng)):
        reader, requests = RequestReader(2**20), []
        try:
            for piece in pieces:
                reader.feed(piece)
                while (request := reader.next_request()) is not None:
                    request.arrived_s = 0.0
                    requests.append(request)
            requests.append(reader.begun)
        except HttpError as error:
            one_line(str(error))
            requests.append("refused")
        found.append(requests)
    if found[0] != found[1]:
        raise FaultError("split elsewhere, the requests are others")


GET = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
REQUESTS = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}" + GET,
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"GET /health?a=%20b HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n",
)
ASKED = (
    {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True, "n": 2},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "stop": ["a"], "seed": 1},
    {"prompt": ["a", "b"], "max_tokens": 5, "stream_options": {"include_usage": True}, "min_tokens": 1},
    {"prompt": [[1, 2, 3]], "temperature": 0.5, "ignore_eos": True, "logprobs": 1, "priority": 3},
)


def read_what_is_asked(data: bytes) -> None:
    for read in (read_chat, read_completion):
        try:
            read(read_json(data))
        except ServesimError as error:
            json.dumps(getattr(error, "body", None), allow_nan=False)


# Files of models, devices and options


@cache
def gguf_seeds() -> list[bytes]:
    metadata: dict[str, Any] = {"general.architecture": "llama", "llama.block_count": 1}
    metadata |= {"llama.embedding_length": 64, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}
    metadata |= {"llama.feed_forward_length": 128, "llama.vocab_size": 100, "llama.context_length": 512}
    tensors = [("token_embd.weight", (64, 100), "f16"), ("blk.0.attn_q.weight", (64, 64), "q8_0")]
    seeds = [GgufFile(metadata, tensors), GgufFile(metadata, tensors, version=2), GgufFile(metadata, [], order=">")]
    return [file.bytes() + bytes(20_000) for file in seeds]


def read_a_gguf(data: bytes) -> None:
    in_file("model.gguf", data, load_model)


def read_a_config(data: bytes) -> None:
    def read(path: str) -> None:
        model = load_model(path)
        if not (math.isfinite(model.params) and model.weights_bytes > 0):
            raise FaultError("a model without weights")

    in_file("config.json", data, read)


@cache
def config_seeds() -> list[bytes]:
    presets = (ROOT / "servesim" / "catalog" / "data").glob("*.json")
    return [path.read_bytes() for path in sorted([*presets, *(ROOT / "fixtures" / "models").glob("*/config.json")])]


def read_prompt_lines(data: bytes) -> None:
    read_prompts(data.decode("utf-8", "replace").splitlines(), "prompts.jsonl")


PROMPTS = (
    b'{"prompt": "a", "output_tokens": 5}\n{"messages": [{"role": "user", "content": "b"}], "max_tokens": 3}\n',
    b'{"text": "c"}\n"d"\n',
)


def one_line(text: str) -> None:
    """Raise if a text for people has more than one line."""
    if "\n" in text or "\r" in text:
        raise FaultError(f"more than one line: {text[:60]!r}")


def finite(tree: Any) -> None:
    """Raise if JSON holds a number that JSON does not have."""
    if isinstance(tree, float) and not math.isfinite(tree):
        raise FaultError(f"a number that is {tree}")
    for item in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        finite(item)


READ: dict[str, Target] = {
    "trace": Target(run=read_a_trace, seeds=trace_seeds),
    "run": Target(run=read_a_run, seeds=run_seeds),
    "stream": Target(run=read_a_stream, seeds=lambda: captured("*stream*.txt", "vllm-chat.txt")),
    "error": Target(run=read_an_error, seeds=lambda: captured("*error*.txt"), may=()),
    "http-body": Target(run=read_a_body, seeds=body_seeds),
    "metrics": Target(run=read_a_page, seeds=lambda: captured("*metrics*.txt"), may=()),
    "http-request": Target(run=read_requests, seeds=lambda: REQUESTS, may=()),
    "asked": Target(run=read_what_is_asked, seeds=lambda: [json.dumps(each).encode() for each in ASKED], may=()),
    "gguf": Target(run=read_a_gguf, seeds=gguf_seeds, may=(InputError,)),
    "config": Target(run=read_a_config, seeds=config_seeds, may=(InputError,)),
    "prompts": Target(run=read_prompt_lines, seeds=lambda: PROMPTS, may=(InputError,)),
}
