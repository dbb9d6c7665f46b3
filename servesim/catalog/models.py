"""Models by name: presets, repositories of Hugging Face, and the files of any other model.

A preset is a file `data/NAME.json`: the trimmed `config.json` of the model, which the importer reads as it reads a
user's own, and under `servesim` what no configuration says: the published parameters (tied embeddings counted once,
vision towers and draft layers left out), the source and its date, and the repositories that hold the same shapes. A
preset with a `base` is that preset with what its own file says instead. One file is read for one preset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

from servesim.catalog.huggingface import checkpoint_format, decoder_fields, plain_model, read_hugging_face
from servesim.catalog.json_fields import JsonFields
from servesim.catalog.model import Model
from servesim.errors import InputError
from servesim.inputs import Object, is_gguf, read_object
from servesim.units import shown, suggest

_NAMES = """
    llama-3.1-8b llama-3.1-8b-fp8 llama-3.1-70b llama-3.1-405b llama-3.2-1b llama-3.2-3b
    smollm2-135m smollm2-135m-q8_0 smollm2-135m-q4_1 smollm2-360m smollm2-1.7b tinystories-gpt-47m
    qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b qwen2.5-7b qwen2.5-72b
    mistral-7b mistral-nemo-12b mistral-small-24b
    gemma-2-9b gemma-3-1b gemma-3-4b gemma-3-12b gemma-3-27b phi-4
    qwen3-30b-a3b qwen3-235b-a22b qwen3-235b-a22b-fp8 qwen3-next-80b-a3b qwen3.5-397b-a17b
    gpt-oss-20b gpt-oss-120b mixtral-8x7b
    deepseek-v3 deepseek-r1 deepseek-v2-lite kimi-k2 kimi-k2.5 glm-5 minimax-m2.5 llama-4-scout
""".split()
"""The presets in the order in which they are listed: dense models by their makers, then mixtures of experts."""

_FACTS = "servesim"  # the key of a preset's file under which lies what is no configuration


class _Presets(Mapping[str, Model]):
    """The presets by name, each read from its file when it is asked for."""

    def __getitem__(self, name: str) -> Model:
        if name not in _NAMES:
            raise KeyError(name)
        return _preset(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

    def __contains__(self, name: object) -> bool:
        return name in _NAMES


MODELS: Mapping[str, Model] = _Presets()


@cache
def repositories() -> dict[str, str]:
    """Return the names by which a server loads a preset, each with the preset of the same shape."""
    return {name: preset for preset in MODELS for name in _document(preset)[_FACTS].get("repositories", ())}


def find_model(name: str) -> Model:
    """Return the preset `name`, or the one of the repository `name`.

    Raises `InputError` with the nearest name when there is none.
    """
    if name in MODELS:
        return MODELS[name]
    known = repositories() if "/" in name else {}
    if name not in known:
        raise suggest("model", name, known or MODELS)
    return MODELS[known[name]]


def load_model(name: str) -> Model:
    """Return the model `name`: a preset, a repository's name, or a path to the model's own files.

    A path is a `config.json`, a folder with one, or a GGUF file, of which only the header is read. Raises `InputError`
    for an unknown name and for a file that is no model.
    """
    if name in MODELS:
        return MODELS[name]
    is_folder = os.path.isdir(name)
    if not is_folder and (name.lower().endswith(".gguf") or is_gguf(name)):
        from servesim.catalog.gguf import read_gguf_model  # which few starts need

        return read_gguf_model(name)
    if is_folder or os.path.isfile(name) or name.endswith(".json"):
        return read_hugging_face(name)
    if name.startswith((os.curdir, os.sep, "~")):
        raise InputError(f"no model at {shown(name)}; give a config.json, its folder or a .gguf file")
    return find_model(name)


def _path(name: str) -> str:
    return os.path.join(os.path.dirname(__file__), "data", f"{name}.json")


@cache
def _document(name: str) -> Object:
    return read_object(_path(name))


@cache
def _preset(name: str) -> Model:
    document = _document(name)
    base = document[_FACTS].get("base")
    if base is not None:
        beneath = _document(base)
        document = {**beneath, **document, _FACTS: {**beneath[_FACTS], **document[_FACTS]}}
    facts, fields = JsonFields(document[_FACTS], _path(name)), decoder_fields(document, _path(name))
    model = replace(
        plain_model(fields, name),
        params=facts.count("params", maximum=10**15),
        active_params=facts.count("active_params", default=0, maximum=10**15),
        mlp_layers=None,  # all that have no experts
        source=facts.text("source"),
        date=facts.text("date"),
    )
    form = checkpoint_format(fields.part("quantization_config"))
    if form is not None and form.name is not None:
        model = model.quantized(form.name, keep=form.keep)
    if facts.get("weight_dtype") is not None:  # every weight of it, as in a GGUF file
        model = replace(model, weight_dtype=facts.text("weight_dtype"))
    if facts.get("file_bytes") is not None:
        model = replace(model, file_bytes=facts.count("file_bytes", maximum=10**15))
    return model
