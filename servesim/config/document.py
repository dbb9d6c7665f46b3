"""`--config FILE`: the configuration in any document servesim wrote, or in a JSON object written by hand."""

from __future__ import annotations

from typing import Any

from servesim.errors import InputError
from servesim.inputs import recognise


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
