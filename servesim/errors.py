"""What can go wrong and how it ends: bad input is exit code 2, a run that failed is exit code 1."""

from __future__ import annotations


class ServesimError(Exception):
    """Base of every error that servesim raises on purpose; its text is one line for the user."""

    exit_code = 1


class InputError(ServesimError):
    """What was asked makes no sense: a flag, a field of a trace line, a file that cannot be read."""

    exit_code = 2


class RunError(ServesimError):
    """What was asked makes sense but cannot be done: a server out of reach, an output that cannot be written."""


class CapacityError(RunError):
    """A model or one sequence does not fit the device."""
