"""`servesim models`: the models that are known, or one of them, of a preset or of its own files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servesim.catalog.model import Model
from servesim.catalog.models import MODELS, load_model, repositories
from servesim.catalog.weights import WEIGHT_FORMATS
from servesim.cli.options import JSON, OUTPUT, QUIET
from servesim.cli.output import result_to
from servesim.cli.parser import Parser
from servesim.config.option import Group, Option, options_of
from servesim.config.server import ServerSpec
from servesim.errors import InputError
from servesim.report.catalog import format_dict, formats_text, model_dict, model_text, models_text
from servesim.report.documents import document, to_json

EXAMPLES = (
    "servesim models",
    "servesim models llama-3.1-8b deepseek-v3",
    "servesim models Qwen/Qwen3-30B-A3B --quantization awq",
    "servesim models --formats",
    "servesim models glm-5 --json",
)

_AS_SERVED = ("quantization", "kv_cache_dtype")

CHOICE = Group(
    "what",
    (
        Option("--formats", "formats", "list the formats of weights, which --quantization names, instead of models"),
        *options_of(ServerSpec, *_AS_SERVED),
    ),
)


def build_parser() -> Parser:
    parser = Parser(
        "models",
        "The models that are known, one row each; or what is known of each that is named: a preset, a repository,\n"
        "a config.json, its folder, or a .gguf file.",
        EXAMPLES,
        (CHOICE, Group("output", (JSON, OUTPUT, QUIET))),
    )
    parser.usage = "servesim models [NAME...] [options]"
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a model, as --model takes it; all presets without one"
    )
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().read(argv)
    if flags is None:
        return 0
    names = flags.get("names") or []
    if flags.get("formats"):
        if names:
            raise InputError("--formats lists the formats of weights; leave it out to describe a model")
        body: dict[str, Any] = {"formats": [format_dict(form) for form in WEIGHT_FORMATS.values()]}
        text = formats_text(WEIGHT_FORMATS.values())
    else:
        models = [_as_served(load_model(name), flags) for name in names or MODELS]
        body = {"models": [model_dict(model) for model in models]}
        text = models_text(models)
        if names:
            text = "\n".join(model_text(model, _repositories(model)) for model in models)
    with result_to(flags.get("output")) as write:
        asked = {key: flags[key] for key in ("names", *_AS_SERVED) if flags.get(key)}
        write(to_json(document("models", asked, body)) if flags.get("json") else text)
    return 0


def _as_served(model: Model, flags: dict[str, Any]) -> Model:
    if flags.get("quantization") is not None:
        model = model.quantized(flags["quantization"])
    return model if flags.get("kv_cache_dtype") is None else model.with_kv_dtype(flags["kv_cache_dtype"])


def _repositories(model: Model) -> list[str]:
    return [repository for repository, preset in repositories().items() if preset == model.name]
