"""Model presets: the published figures of models that people serve, each with its source and date.

Parameters are those of the checkpoint's own count (tied embeddings counted once, vision towers and draft layers left
out), layer shapes those of its `config.json`. A test derives the parameters from the shapes and holds the two together.
Any other model is read from its own files, by modules that are imported when a path is given.
"""

from __future__ import annotations

import os

from servesim.catalog.dense_models import DENSE_MODELS
from servesim.catalog.expert_models import EXPERT_MODELS
from servesim.catalog.model import Attention as Attention
from servesim.catalog.model import Experts as Experts
from servesim.catalog.model import Model as Model
from servesim.errors import InputError
from servesim.units import shown, suggest

MODELS: dict[str, Model] = {preset.name: preset for preset in (*DENSE_MODELS, *EXPERT_MODELS)}

REPOSITORIES: dict[str, str] = {
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "meta-llama/Llama-3.2-1B-Instruct": "llama-3.2-1b",
    "meta-llama/Llama-3.2-3B-Instruct": "llama-3.2-3b",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m",
    "HuggingFaceTB/SmolLM2-360M-Instruct": "smollm2-360m",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "smollm2-1.7b",
    "Qwen/Qwen3-0.6B": "qwen3-0.6b",
    "Qwen/Qwen3-1.7B": "qwen3-1.7b",
    "Qwen/Qwen3-4B": "qwen3-4b",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-14B": "qwen3-14b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b-fp8",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3-next-80b-a3b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "Qwen/Qwen2.5-72B-Instruct": "qwen2.5-72b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo-12b",
    "mistralai/Mistral-Small-24B-Instruct-2501": "mistral-small-24b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama-4-scout",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "google/gemma-3-1b-it": "gemma-3-1b",
    "google/gemma-3-4b-it": "gemma-3-4b",
    "google/gemma-3-12b-it": "gemma-3-12b",
    "google/gemma-3-27b-it": "gemma-3-27b",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V2-Lite": "deepseek-v2-lite",
    "moonshotai/Kimi-K2-Instruct": "kimi-k2",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "zai-org/GLM-5": "glm-5",
    "zhipuai/GLM-5": "glm-5",
    "MiniMaxAI/MiniMax-M2": "minimax-m2.5",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "microsoft/phi-4": "phi-4",
}
"""The names under which a server is told to load these models, each with the preset of the same shape."""


def find_model(name: str) -> Model:
    """Return the preset `name`, or the one of the repository `name`.

    Raises `InputError` with the nearest name when there is none.
    """
    preset = MODELS.get(REPOSITORIES.get(name, name))
    if preset is None:
        raise suggest("model", name, REPOSITORIES if "/" in name else MODELS)
    return preset


def load_model(name: str) -> Model:
    """Return the model `name`: a preset, a repository's name, or a path to the model's own files.

    A path is a `config.json`, a folder with one, or a `.gguf` file, of which only the header is read. Raises
    `InputError` for an unknown name and for a file that is no model.
    """
    if name in MODELS:
        return MODELS[name]
    is_folder = os.path.isdir(name)
    if name.lower().endswith(".gguf") and not is_folder:
        from servesim.catalog.gguf import read_gguf_model

        return read_gguf_model(name)
    if is_folder or os.path.isfile(name) or name.endswith(".json"):
        from servesim.catalog.huggingface import read_hugging_face

        return read_hugging_face(name)
    if name.startswith((os.curdir, os.sep, "~")):
        raise InputError(f"no model at {shown(name)}; give a config.json, its folder or a .gguf file")
    return find_model(name)
