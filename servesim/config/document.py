"""`--config FILE`: the configuration in any document servesim wrote, or in a JSON object written by hand."""

from __future__ import annotations

import json
from typing import Any

from servesim.console import reason
from servesim.errors import InputError
from servesim.units import refuse_constant

MAX_BYTES = 256 * 2**20  # a document is a page; the first line of a saved run is less


def read_config(path: str) -> tuple[dict[str, Any], bool]:
    """Return the `config` of the document at `path`, and whether servesim wrote it.

    A document is JSON, or a saved run, whose first line has the configuration. An object without a schema is taken for
    a configuration written by hand. Raises `InputError` with the file's name.
    """
    document = first_object(path)
    written = "schema" in document
    config = document.get("config") if written or "config" in document else document
    if not isinstance(config, dict):
        raise InputError(f"{path}: has no config; give a document that servesim wrote, or an object of options")
    return config, written


def first_object(path: str) -> dict[str, Any]:
    """Return the JSON object that `path` begins with: the whole document, or the first line of a saved run."""
    try:
        with open(path, encoding="utf-8") as file:
            head = file.readline(MAX_BYTES)
            try:
                document = json.loads(head, parse_constant=refuse_constant)
            except ValueError:
                document = json.loads(head + file.read(MAX_BYTES), parse_constant=refuse_constant)
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {str(error)[:80].lower()}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: must be a JSON object")
    return document
