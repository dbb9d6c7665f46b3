"""What every verb does alike: read its arguments, open the output, run, write text or JSON, warn, exit.

A verb is a module `servesim.cli.VERB` with `build_parser()`, which declares its options and examples, and `run(call)`,
which returns a `Result`: a document for `--json`, a text, an exit code. One that serves until it is stopped, or writes
as it goes, returns its exit code instead.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from servesim.catalog.hardware import load_hardware
from servesim.catalog.models import load_model
from servesim.cli.options import DEVICE
from servesim.cli.parser import Parser
from servesim.config.build import build_server
from servesim.config.option import Option, checks_of, spec_of
from servesim.config.server import DERIVED, ServerSpec
from servesim.console import Console, OutputFile
from servesim.errors import InputError, RunError, ServesimError
from servesim.inputs import recognise
from servesim.units import shown, suggest


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a verb: every value that was given, by key, and the way to the person."""

    parser: Parser
    values: dict[str, Any]
    console: Console

    @property
    def ascii_only(self) -> bool:
        """Whether the text must do without block characters: stdout says that it cannot write them."""
        encoding = getattr(sys.stdout, "encoding", None) if self.values.get("output") is None else "utf-8"
        return (encoding or "utf-8").lower().replace("-", "") != "utf8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a verb found: either form of it, made when it is written, whole or in pieces."""

    text: Callable[[], str | Iterable[str]]
    document: Callable[[], dict[str, Any]] | None = None  # None: there is no `--json`
    code: int = 0
    warnings: Sequence[str] = ()
    in_text: Sequence[str] = ()  # warnings that the text has too: said where it is not on the terminal
    error: ServesimError | None = None  # raised when the result is written: the answer is no


def run_verb(verb: str, argv: Sequence[str]) -> int:
    """Run `servesim VERB` with `argv` and return its exit code."""
    module = import_module(f"servesim.cli.{verb}")
    parser: Parser = module.build_parser()
    flags = parser.read(argv)
    if flags is None:
        return 0
    values = gather(parser, flags)
    check_output(values)
    console = Console(quiet=values.get("quiet", False))
    path = values.get("output")
    with _Stdout() if path is None else OutputFile(path) as output:
        result: Result | int = module.run(Call(parser=parser, values=values, console=console))
        if isinstance(result, int):
            return result
        as_json = bool(values.get("json")) and result.document is not None
        if as_json and result.document is not None:
            # Reads of runs and their summaries, which a result printed as text should not wait for.
            from servesim.report.documents import to_json

            output.write(to_json(result.document()))
        else:
            text = result.text()
            for piece in (text,) if isinstance(text, str) else text:
                output.write(piece)
        output.commit()
    hidden = result.in_text if as_json or "output" in values else ()
    for warning in (*hidden, *result.warnings):
        console.warn(warning)
    if result.error is not None:
        raise result.error
    return result.code


class _Stdout:
    """stdout as a place for the result."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise RunError("cannot write the result: stdout is closed")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # for what the terminal's encoding lacks
        self.write = sys.stdout.write

    def __enter__(self) -> _Stdout:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def commit(self) -> None:
        pass


def check_output(values: Mapping[str, Any]) -> None:
    """Refuse a picture in characters inside a JSON document, and two results in one file."""
    if values.get("plot") and values.get("json"):
        raise InputError("--plot draws into the text; leave out --json, or ask servesim report for pictures")
    saved, result = values.get("save"), values.get("output")
    if saved is None or result is None or os.path.realpath(saved) != os.path.realpath(result):
        return
    if os.path.isfile(result) or not os.path.exists(result):  # a terminal or a pipe may have both
        raise InputError(f"--save and --output are both {shown(saved)}; give each a file of its own")


PRESETS: dict[str, Callable[[str], object]] = {"hardware": load_hardware, "model": load_model}

# What a flag puts out of a configuration from a file, since both cannot hold. A workload is one of three kinds.
_TRACE_KEYS = ("trace", "trace_format", "time_unit", "skip_bad_rows", "speed")
_GENERATED_KEYS = (
    "prompt_tokens",
    "output_tokens",
    "shared_prefix_tokens",
    "prefixes",
    "turns",
    "think_s",
    "priorities",
    "classes",
    "adapters",
)
_OPEN_KEYS = ("rate", "rate_schedule", "arrivals", "burstiness", "ramp_s")
_CLOSED_KEYS = ("concurrency", "stagger_s")
_LINK_KEYS = ("link_bytes_per_s", "link_latency_s", "link_scope", "transfer_overlap")
_REPLACES: dict[str, tuple[str, ...]] = {
    "concurrency": (*_OPEN_KEYS, "speed"),
    "rate": ("rate_schedule", *_CLOSED_KEYS, *_TRACE_KEYS),
    "rate_schedule": ("rate", "ramp_s", "requests", "duration_s", *_CLOSED_KEYS, *_TRACE_KEYS),
    "burstiness": ("arrivals",),
    "trace": ("requests", *_CLOSED_KEYS, *_OPEN_KEYS, *_GENERATED_KEYS, *_TRACE_KEYS),
    **dict.fromkeys(_GENERATED_KEYS, _TRACE_KEYS),
    "kv_tokens": ("kv_blocks",),
    "kv_blocks": ("kv_tokens",),
    "replicas": ("fleet", "disagg", *_LINK_KEYS),
    "fleet": ("replicas", "disagg", *_LINK_KEYS),
    "disagg": ("replicas", "fleet"),
}


def gather(parser: Parser, flags: dict[str, Any]) -> dict[str, Any]:
    """Return every value that was given, by key: those of `--config` or `--like`, and over them the flags."""
    path, like = flags.get("config_file"), flags.get("like")
    if path is None and like is None:
        return flags
    if like is not None:
        if path is not None:
            raise InputError("--config and --like both say what is run; give one of them")
        # Knows what servers tell, and so the load generator: nothing that another command should wait for.
        from servesim.cli.like import like_options

        path, (config, written) = like, (like_options(like), True)
    else:
        config, written = read_config(str(path))
    values: dict[str, Any] = {}
    options = parser.options
    for key, value in config.items():
        option = options.get(key)
        if option is None:
            if not written:
                raise suggest(f"option in {path}", key, options)
        elif value is not None:
            try:
                values[key] = _checked(option, value, f"{path}: {key}", lists=parser.lists)
                if key in PRESETS and option in DEVICE.options and key not in flags:
                    for name in [values[key]] if isinstance(values[key], str) else values[key]:
                        PRESETS[key](name)  # now, while it is known which file names it
            except InputError as error:
                raise error if str(error).startswith(f"{path}: ") else InputError(f"{path}: {error}") from None
    if like is None and flags.keys() & checks_of(ServerSpec).keys():
        values = _without_defaults(values)
    dropped = {key for flag in flags for key in _REPLACES.get(flag, ())}
    return {key: value for key, value in values.items() if key not in dropped} | flags


def read_config(path: str) -> tuple[dict[str, Any], bool]:
    """Return the `config` of the document at `path`, and whether servesim wrote it.

    A document is JSON, or a saved run, whose first line has the configuration. An object without a schema is taken for
    a configuration written by hand. Raises `InputError` with the file's name.
    """
    document = recognise(path).json_object()
    written = "schema" in document
    config = document.get("config") if written or "config" in document else document
    if not isinstance(config, dict):
        raise InputError(f"{path}: has no config; give a document that servesim wrote, or an object of options")
    return config, written


def _checked(option: Option, value: Any, name: str, *, lists: bool) -> Any:
    check = option.check
    if not isinstance(value, list):
        return [check(value, name)] if option.repeat else check(value, name)
    if option.repeat or (lists and option.swept):
        return [check(item, name) for item in value]
    raise InputError(f"{name} is a list, and only sweep takes several values")


def _without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the configured server would have had anyway, so that another device brings its own defaults."""
    given = {key: value for key, value in values.items() if key not in DERIVED}
    try:
        server = build_server(spec_of(ServerSpec, given)).spec
    except ServesimError:
        return values
    return given | {key: values[key] for key in DERIVED if key in values and values[key] != getattr(server, key)}
