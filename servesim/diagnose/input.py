"""What there is to diagnose in files: metric pages, reports, saved runs, each recognised by its content.

A server is known as far as somebody said: a simulated report has all of it, a metric page its own cache, the command
line of a real server its limits. Model and device are never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from servesim.catalog.servers import dialect_of, metrics_hint
from servesim.client.window import setup_facts
from servesim.config.build import Server, build_server
from servesim.config.option import checks_of, given_of
from servesim.config.server import ServerSpec
from servesim.config.server_flags import ServerFlags, preset_of
from servesim.diagnose.diagnose import DiagnosisInput
from servesim.diagnose.state import (
    ServerState,
    engines_of,
    is_server_page,
    of_pages,
    of_summary,
    with_flags,
    with_server,
)
from servesim.errors import InputError, ServesimError
from servesim.inputs import STDIN, Contents, FileKind, recognise
from servesim.runs.reader import read_run
from servesim.runs.writer import SCHEMA as RUN_SCHEMA
from servesim.summary.slo import Slo
from servesim.summary.summary import summarize
from servesim.wire.prometheus import Page, parse_page


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHints:
    """What is said beside the files: the time between two pages, the server's command line, options, objectives."""

    window_s: float | None = None
    flags: ServerFlags | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of a `ServerSpec`; they beat the command line
    slos: tuple[Slo, ...] = ()

    @property
    def given(self) -> dict[str, Any]:
        """The options of the server that were said in either way."""
        return {**(self.flags.values if self.flags is not None else {}), **self.options}


def read_inputs(paths: Sequence[str], hints: ServerHints) -> tuple[list[DiagnosisInput], list[str]]:
    """Return what the files at `paths` (`-`: standard input) hold, and notes for a person.

    Raises `InputError` for what cannot be read, is no page or report, or leaves nothing to diagnose.
    """
    pages: list[Page] = []
    inputs: list[DiagnosisInput] = []
    notes: list[str] = []
    if hints.flags is not None and hints.flags.ignored:
        notes.append(f"not read from the flags: {', '.join(hints.flags.ignored)}")
    for path in paths:
        file = recognise(path)
        if file.kind is FileKind.RUN:
            inputs.append(_of_run(file, hints, notes))
        elif file.text.lstrip().startswith("{"):
            inputs += _of_document(file, hints, notes)
        else:
            pages.append(_page(path, file.text))
    if len(pages) > 2:
        raise InputError(f"{len(pages)} metric pages are given; give one, or the earlier and the later one")
    if pages:
        inputs.append(_of_pages(pages, hints, notes))
    if not inputs:
        raise InputError("nothing to diagnose in the files")
    return inputs, list(dict.fromkeys(notes))


def _page(path: str, content: str) -> Page:
    if not content.strip():
        raise InputError(f"{path}: is empty; a metric page comes from a server that runs, at its own address")
    page = parse_page(content)
    if not is_server_page(page):
        raise InputError(f"{path}: is no metric page of vLLM, llama.cpp or SGLang, and no report of servesim")
    return page


def _of_pages(pages: Sequence[Page], hints: ServerHints, notes: list[str]) -> DiagnosisInput:
    before, after = (pages[0] if len(pages) == 2 else None), pages[-1]
    dialects = [found.name for page in pages if (found := dialect_of(page.samples)) is not None]
    if len({*dialects}) > 1:
        raise InputError(
            f"the pages are of two servers, {' and '.join(dialects)}; give an earlier and a later one of one"
        )
    engines = engines_of(after)
    if engines > 1:
        notes.append(f"the page tells of {engines} engines: running and waiting are those of one of them, on average")
    return _measured(
        of_pages(before, after, window_s=hints.window_s), setup_facts(after), _served_model(after), hints, notes
    )


def _of_run(file: Contents, hints: ServerHints, notes: list[str]) -> DiagnosisInput:
    if file.path == STDIN or file.json_object().get("schema") != RUN_SCHEMA:
        raise InputError(f"{file.path}: is no saved run of this version in a file")
    run = read_run(file.path)
    return _of_summary(summarize(run, hints.slos).as_dict(), run.config, file.path, hints, notes)


def _of_document(file: Contents, hints: ServerHints, notes: list[str]) -> Iterator[DiagnosisInput]:
    """Yield what a report holds to diagnose: one run, or one for each row of a sweep."""
    path = file.path
    if file.fault:
        raise InputError(f"{path}: is not JSON: {file.fault}")
    loaded = file.value
    if "schema" not in loaded:
        raise InputError(f"{path}: is JSON but no report of simulate, loadgen or sweep; {metrics_hint()}")
    schema, config = str(loaded.get("schema")), loaded.get("config")
    if schema not in ("servesim.summary/1", "servesim.sweep/1") or not isinstance(config, dict):
        raise InputError(f"{path}: schema is {schema}, must be a report of simulate, loadgen or sweep")
    try:
        if "rows" not in loaded:
            yield _of_summary(loaded, config, path, hints, notes)
            return
        for number, row in enumerate(loaded["rows"], 1):
            point = row.get("swept") or {key: row[key] for key in ("concurrency", "rate") if key in row}
            one = _of_summary(row, {**config, **point}, f"{path} row {number}", hints, notes)
            yield replace(one, point=point)
    except KeyError as error:
        raise InputError(f"{path}: lacks {error} of a report") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: is not what a report is: {error}") from error


def _of_summary(
    row: Mapping[str, Any], config: Mapping[str, Any], source: str, hints: ServerHints, notes: list[str]
) -> DiagnosisInput:
    state = of_summary(row, config, source=source)
    if row.get("source") != "simulated":
        return replace(_measured(state, {}, config.get("model"), hints, notes), summary=row, config=config)
    if any(config.get(name) for name in ("disagg", "fleet", "autoscale")) or (config.get("replicas") or 1) > 1:
        notes.append(f"{source}: a fleet's figures are taken together, without the limits of its servers")
        return DiagnosisInput(state=replace(state, max_num_seqs=None, max_num_batched_tokens=None, num_blocks=None))
    asked = given_of(ServerSpec, config)
    server = _built(asked, notes)
    if server is None:
        return DiagnosisInput(state=state)
    return DiagnosisInput(state=with_server(state, server), server=server, summary=row, config=config)


def _measured(
    state: ServerState, facts: Mapping[str, str], model: object, hints: ServerHints, notes: list[str]
) -> DiagnosisInput:
    """Return a real server as input: what it said, what its command line says, what model and device come to."""
    flags, given = hints.flags, hints.given
    if flags is not None and state.dialect not in (None, flags.dialect):
        notes.append(f"the flags are those of {flags.dialect}, the metrics those of {state.dialect}")
    if state.counter_resets:
        notes.append("the counters started again: the server did, or the later of two pages is given first")
    state = with_flags(state, given)
    if "hardware" not in given:
        return DiagnosisInput(state=state, facts=facts)
    if "model" not in given and not isinstance(model, str):
        notes.append("the model is not known; give --model to hold the cache against the memory plan")
        return DiagnosisInput(state=state, facts=facts)
    asked = {"model": preset_of(str(model)), **given}
    if state.dialect == "vllm":
        asked.setdefault("like_vllm", True)
        for name in ("gpu_memory_utilization", "block_size"):
            if facts.get(name, "None") != "None":
                asked.setdefault(name, checks_of(ServerSpec)[name](facts[name], name))
    server = _built(asked, notes)
    if server is not None:
        state = with_server(state, server)
    return DiagnosisInput(state=state, facts=facts, server=server)


def _built(asked: Mapping[str, Any], notes: list[str]) -> Server | None:
    try:
        return build_server(ServerSpec(**asked))
    except ServesimError as error:
        notes.append(f"the server cannot be planned: {error}")
        return None


def _served_model(page: Page) -> str | None:
    """Return the model that a page's samples are labelled with, None if with none."""
    labels = (sample.labels for found in page.samples.values() for sample in found)
    return next((each["model_name"] for each in labels if "model_name" in each), None)
