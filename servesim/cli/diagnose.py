"""`servesim diagnose`: what binds a server, from its metric pages or from a report, and which knob to turn first."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from servesim.analysis.diagnose import Subject, diagnosis
from servesim.analysis.evidence import Evidence, is_server_page, of_pages, of_summary, with_flags, with_server
from servesim.analysis.server_flags import ServerFlags, parse_flags, preset_of
from servesim.catalog.hardware import load_hardware
from servesim.catalog.models import load_model
from servesim.cli.options import DEVICE, JSON, LIMITS, OUTPUT, QUIET
from servesim.cli.output import result_to
from servesim.cli.parser import Group, Option, Parser
from servesim.client.window import setup_facts
from servesim.console import Console, reason
from servesim.engine.server import Server, build_server
from servesim.engine.spec import SERVER_CHECKS, ServerSpec, seconds, text
from servesim.errors import InputError, ServesimError
from servesim.report.diagnosis import diagnosis_text
from servesim.report.documents import document, to_json
from servesim.runfile import SCHEMA as RUN_SCHEMA
from servesim.runreader import read_run
from servesim.slo import parse_slos
from servesim.summary import summarize
from servesim.wire.prometheus import Page, parse_page

EXAMPLES = (
    "servesim diagnose before.txt after.txt --window 30s --flags 'vllm serve Qwen/Qwen3-8B --max-num-seqs 256'",
    "servesim diagnose metrics.txt --hardware l4-24gb --model llama-3.1-8b",
    "curl -s localhost:8000/metrics | servesim diagnose -",
    "servesim diagnose report.json",
)

READ = Group(
    "what is known",
    (
        Option("--window", "window_s", "time between two metric pages", seconds(positive=True), "TIME"),
        Option("--flags", "flags", "the command line that started the server", text, "'vllm serve ...'"),
        Option("--try", "try", "turn the first knob in the simulator (reports of simulate and sweep)"),
        Option("--slo", "slo", "objectives for a saved run", text, "LIMIT", repeat=True),
    ),
)

MAX_BYTES = 256 * 2**20


def build_parser() -> Parser:
    parser = Parser(
        "diagnose",
        "Which budget binds, which knob to turn first, what will not help. FILE is a /metrics page (or two, the\n"
        "earlier first), the JSON report of simulate, loadgen or sweep, or a saved run. Never exit 1 by its verdict.",
        EXAMPLES,
        (READ, DEVICE, LIMITS, Group("output", (JSON, OUTPUT, QUIET))),
    )
    parser.usage = "servesim diagnose FILE... [options]"
    parser.add_argument("files", nargs="*", metavar="FILE", help="what to read; - is standard input")
    return parser


@dataclass(slots=True)
class _Read:
    """What the files hold."""

    pages: list[Page] = field(default_factory=list)
    subjects: list[Subject] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(argv: Sequence[str]) -> int:
    flags = build_parser().read(argv)
    if flags is None:
        return 0
    files = flags.pop("files", [])
    if not files:
        raise InputError("name a file: servesim diagnose FILE..., such as a saved /metrics page")
    console = Console(quiet=flags.get("quiet", False))
    told = parse_flags(flags["flags"]) if "flags" in flags else None
    with result_to(flags.get("output")) as write:
        body = diagnose_files(files, flags, told)
        for note in body["notes"]:
            console.note(note)
        config = {"files": files, **{key: value for key, value in flags.items() if key not in ("json", "output")}}
        write(to_json(document("diagnose", config, body)) if flags.get("json") else diagnosis_text(body))
    return 0


def diagnose_files(files: Sequence[str], flags: Mapping[str, Any], told: ServerFlags | None = None) -> dict[str, Any]:
    """Return the diagnosis of what `files` hold, under the options `flags` and the server's command line `told`."""
    found = _Read()
    for path in files:
        _read(path, found, flags)
    if len(found.pages) > 2:
        raise InputError(f"{len(found.pages)} metric pages are given; give one, or the earlier and the later one")
    given = {**(told.values if told else {}), **{key: flags[key] for key in SERVER_CHECKS if key in flags}}
    if told is not None and told.ignored:
        found.notes.append(f"not read from the flags: {', '.join(told.ignored)}")
    if "hardware" in flags:
        load_hardware(flags["hardware"])  # a name mistyped here is worth more than a note
    if "model" in flags:
        load_model(flags["model"])
    if found.pages:
        found.subjects.append(_of_pages(found, flags, given, told))
    if not found.subjects:
        raise InputError("nothing to diagnose in the files")
    return diagnosis(found.subjects, found.notes, try_it=flags.get("try", False))


def _of_pages(found: _Read, flags: Mapping[str, Any], given: Mapping[str, Any], told: ServerFlags | None) -> Subject:
    before = found.pages[0] if len(found.pages) == 2 else None
    after = found.pages[-1]
    evidence = of_pages(before, after, window_s=flags.get("window_s"))
    if told is not None and told.dialect != evidence.dialect:
        found.notes.append(f"the flags are those of {told.dialect}, the metrics those of {evidence.dialect}")
    evidence = with_flags(evidence, given)
    facts = setup_facts(after)
    server = _server(given, evidence, facts, served_model(after), found.notes) if "hardware" in given else None
    return Subject(evidence=evidence if server is None else with_server(evidence, server), facts=facts, server=server)


def served_model(page: Page) -> str | None:
    """Return the model that a page's samples are labelled with, None if with none."""
    labels = (sample.labels for found in page.samples.values() for sample in found)
    return next((each["model_name"] for each in labels if "model_name" in each), None)


def _server(
    given: Mapping[str, Any], evidence: Evidence, facts: Mapping[str, str], model: str | None, notes: list[str]
) -> Server | None:
    """Return the server that flags and options come to, with vLLM's own defaults where it is vLLM."""
    asked = dict(given)
    if "model" not in asked:
        if model is None:
            notes.append("the model is not known; give --model to hold the cache against the memory plan")
            return None
        asked["model"] = preset_of(model)
    if evidence.dialect == "vllm":
        asked.setdefault("like_vllm", True)
        for name in ("gpu_memory_utilization", "block_size"):
            if facts.get(name, "None") != "None":
                asked.setdefault(name, SERVER_CHECKS[name](facts[name], name))
    try:
        return build_server(ServerSpec(**asked))
    except ServesimError as error:
        notes.append(f"the server cannot be planned: {error}")
        return None


def _read(path: str, found: _Read, flags: Mapping[str, Any]) -> None:
    """Add what the file at `path` holds: a metric page, a document, or a saved run."""
    try:
        if path == "-":
            content = sys.stdin.read(MAX_BYTES)
        else:
            with open(path, encoding="utf-8") as file:
                content = file.read(MAX_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text") from error
    if not content.lstrip().startswith("{"):
        page = parse_page(content)
        if not is_server_page(page):
            raise InputError(f"{path}: is no metric page of vLLM, llama.cpp or SGLang, and no report of servesim")
        found.pages.append(page)
        return
    if content.startswith('{"kind":"header"') and path != "-":
        _add_run(path, content, found, flags)
        return
    try:
        loaded = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {str(error)[:80].lower()}") from error
    _add_document(path, loaded, found)


def _add_run(path: str, content: str, found: _Read, flags: Mapping[str, Any]) -> None:
    if RUN_SCHEMA not in content[:200]:
        raise InputError(f"{path}: is no saved run of this version")
    run = read_run(path)
    summary = summarize(run, parse_slos(flags.get("slo", ())))
    found.subjects.append(_subject(summary.as_dict(), run.config, path, found.notes))


def _add_document(path: str, loaded: Mapping[str, Any], found: _Read) -> None:
    schema, config = str(loaded.get("schema")), loaded.get("config")
    try:
        if schema == "servesim.summary/1" and isinstance(config, dict):
            found.subjects.append(_subject(loaded, config, path, found.notes))
            return
        if schema == "servesim.sweep/1" and isinstance(config, dict):
            for row in loaded["rows"]:
                own = {**config, **row["swept"]}
                if own.get("num_blocks") is None:
                    own.pop("num_blocks", None)
                subject = _subject(row, own, f"{path} row {len(found.subjects) + 1}", found.notes)
                found.subjects.append(replace(subject, point=row["swept"]))
            return
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: lacks {error} of a report") from error
    raise InputError(f"{path}: schema is {schema}, must be a report of simulate, loadgen or sweep")


def _subject(row: Mapping[str, Any], config: Mapping[str, Any], source: str, notes: list[str]) -> Subject:
    evidence = of_summary(row, config, source=source)
    asked = {key: config[key] for key in SERVER_CHECKS if config.get(key) is not None}
    if row.get("source") != "simulated" or "hardware" not in asked:
        return Subject(evidence=evidence)
    if config.get("disagg") or config.get("fleet") or (config.get("replicas") or 1) > 1:
        notes.append(f"{source}: a fleet's figures are taken together, without the limits of its servers")
        evidence = replace(evidence, max_num_seqs=None, max_num_batched_tokens=None, num_blocks=None)
        return Subject(evidence=evidence)
    try:
        server = build_server(ServerSpec(**asked))
    except ServesimError as error:
        notes.append(f"the server cannot be planned: {error}")
        return Subject(evidence=evidence)
    return Subject(evidence=with_server(evidence, server), server=server, summary=row, config=config)
