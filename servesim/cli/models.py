"""`servesim models`: the models that are known, or one of them, of a preset or of its own files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from servesim.catalog.model import Model
from servesim.catalog.models import MODELS, load_model, repositories
from servesim.catalog.weights import WEIGHT_FORMATS
from servesim.cli.options import JSON, OUTPUT, QUIET
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.option import Group, Option, options_of
from servesim.config.server import ServerSpec
from servesim.errors import InputError
from servesim.report.catalog import formats_text, model_dict, model_text, models_text
from servesim.report.documents import document

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
        usage="[NAME...] [options]",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a model, as --model takes it; all presets without one"
    )
    return parser


def run(call: Call) -> Result:
    values = call.values
    names = values.get("names") or []
    config = {key: values[key] for key in ("names", *_AS_SERVED) if values.get(key)}
    if values.get("formats"):
        if names:
            raise InputError("--formats lists the formats of weights; leave it out to describe a model")
        formats = WEIGHT_FORMATS.values()
        return Result(
            document=lambda: document("models", config, {"formats": [asdict(each) for each in formats]}),
            text=lambda: formats_text(formats),
        )
    models = [_as_served(load_model(name), values) for name in names or MODELS]
    return Result(
        document=lambda: document("models", config, {"models": [model_dict(model) for model in models]}),
        text=lambda: (
            "\n".join(model_text(model, _repositories(model)) for model in models) if names else models_text(models)
        ),
    )


def _as_served(model: Model, values: dict[str, Any]) -> Model:
    if values.get("quantization") is not None:
        model = model.quantized(values["quantization"])
    return model if values.get("kv_cache_dtype") is None else model.with_kv_dtype(values["kv_cache_dtype"])


def _repositories(model: Model) -> list[str]:
    return [repository for repository, preset in repositories().items() if preset == model.name]
