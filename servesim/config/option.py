"""An option, declared once: as the field of a spec, with its check, its default, its flag and its help.

    @dataclass(slots=True, frozen=True, kw_only=True)
    class ServerSpec:
        max_num_seqs: int | None = option(None, count(maximum=2**31), "sequences that run at once", common=True)

From this one line come the spec's own check (`check_fields`), the flag and its help (`groups_of`), the key of
`--config` and of a document's `config` (`values_of`), the argument of `servesim.simulate()`, and completion. The checks
take a flag's text and a JSON value alike. This module knows no option by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeVar, cast

from servesim.errors import InputError
from servesim.units import parse_count, parse_duration, parse_finite, shown, suggest

T = TypeVar("T")

Check = Callable[[Any, str], Any]
"""Takes a flag's text or a JSON value and the name it was given under; returns the value or raises `InputError`."""

REQUIRED: Any = MISSING
"""The default of an option that must be given."""

MAX_DAYS = 3660  # of any time that is given; more than that is a slip of a unit


# Checks


def count(minimum: int = 1, maximum: int = 2**53) -> Check:
    """Return a check for a whole number."""
    return lambda value, name: parse_count(value, name, minimum=minimum, maximum=maximum)


def number(*, above: float | None = None, minimum: float | None = None, maximum: float | None = None) -> Check:
    """Return a check for a finite number."""
    return lambda value, name: parse_finite(value, name, above=above, minimum=minimum, maximum=maximum)


def seconds(*, positive: bool = False) -> Check:
    """Return a check for a time: text with its unit, or a number of seconds from a document or a program."""

    def check(value: Any, name: str) -> float:
        if not isinstance(value, str):
            return parse_finite(value, name, above=0.0 if positive else None, minimum=0.0, maximum=MAX_DAYS * 86400.0)
        given_s = parse_duration(value, name, positive=positive)
        if given_s > MAX_DAYS * 86400.0:
            raise InputError(f"{name} is {shown(value)}, must be at most {MAX_DAYS}d")
        return given_s

    return check


@dataclass(slots=True, frozen=True)
class OneOf:
    """A check for a name in a registry, which says its choices."""

    kind: str
    choices: Mapping[str, Any]

    def __call__(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise wrong(value, name, "a name")
        if value not in self.choices:
            raise suggest(self.kind, value, self.choices)
        return value


def one_of(kind: str, choices: Mapping[str, Any]) -> OneOf:
    """Return a check for a name in a registry."""
    return OneOf(kind, choices)


def text(value: Any, name: str) -> str:
    """Check for text that is not empty."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise wrong(value, name, "a name or a path")
    return value


def switch(value: Any, name: str) -> bool:
    """Check for true or false; an option with this check is a flag without a value."""
    if not isinstance(value, bool):
        raise wrong(value, name, "true or false")
    return value


def wrong(value: object, name: str, what: str) -> InputError:
    """Return the error for a value that is not `what`."""
    return InputError(f"{name} is {shown(value)}, must be {what}")


# Declarations


@dataclass(slots=True, frozen=True)
class Option:
    """One option, the same wherever it appears."""

    flag: str
    key: str
    help: str
    check: Check = switch
    metavar: str = "N"
    default: str = ""  # as the help shows it
    value: object = True  # what the flag of a switch stands for
    aliases: tuple[str, ...] = ()
    swept: bool = False  # `sweep`, `plan` and `loadgen` take a comma list of values
    repeat: bool = False  # may be given again; the value is a list
    many: bool = False  # takes several values at once; the value is a list
    join: str = ""  # may be given again; the value is one text, its parts joined by this
    writes: bool = False  # the value is a file that is written over
    common: bool = False  # `--help` shows it; the others are shown by `--help-all`
    when_used: bool = False  # a document's `config` names it only where it is not at its default
    derived: bool = False  # where it is not given, its value follows from others: the device, the model, vLLM's own
    group: str = ""  # the heading of the help, where it is not that of the field before it
    after: str = ""  # the key of the option that it stands behind, where that is not the field before it

    @property
    def takes_value(self) -> bool:
        return self.check is not switch

    @property
    def about(self) -> str:
        """The help, with `{choices}` the names that the check knows, and `{each}` those with what they are."""
        choices = self.check.choices if isinstance(self.check, OneOf) else {}
        each = "; ".join(f"{name}: {getattr(what, 'about', what)}" for name, what in choices.items())
        return self.help.replace("{choices}", ", ".join(choices)).replace("{each}", each)


@dataclass(slots=True, frozen=True)
class Group:
    """Options under one heading of the help."""

    title: str
    options: tuple[Option, ...]

    def only(self, *keys: str) -> Group:
        """Return the group with nothing but the options of `keys`."""
        return Group(self.title, tuple(option for option in self.options if option.key in keys))

    def without(self, *keys: str) -> Group:
        """Return the group without the options of `keys`."""
        return Group(self.title, tuple(option for option in self.options if option.key not in keys))

    def changed(self, key: str, **changes: Any) -> Group:
        """Return the group with one option declared a little differently."""
        return Group(self.title, tuple(replace(o, **changes) if o.key == key else o for o in self.options))


def option(
    default: T,
    check: Check,
    help: str,  # noqa: A002
    metavar: str = "N",
    *,
    shown_default: str = "",
    flag: str = "",
    no: str = "",
    swept: bool = True,
    field_options: Mapping[str, Any] | None = None,
    **more: Any,
) -> T:
    """Declare an option as the field of a spec, a frozen dataclass; `more` are fields of `Option`.

    The flag is the field's name, without a unit of seconds, unless `flag` says another. `no` is the help of a
    `--no-...` beside the flag of a switch. The help shows `shown_default`, or the default where it can be shown.
    `field_options` go to `dataclasses.field`.
    """
    text_of_default = shown_default or _shown_default(default, metavar)
    declared = [Option(flag, "", help, check, metavar, text_of_default, swept=swept and check is not switch, **more)]
    if no:
        declared.append(replace(declared[0], help=no, value=False))
    return cast(T, field(metadata={"options": tuple(declared)}, **{"default": default, **(field_options or {})}))


def _shown_default(default: object, metavar: str) -> str:
    if default is MISSING or isinstance(default, bool) or not isinstance(default, (str, int, float)):
        return ""
    return str(default) if isinstance(default, str) else f"{default:g}" + ("s" if metavar == "TIME" else "")


@cache
def options_of(spec: Any, *keys: str) -> tuple[Option, ...]:
    """Return the options that the fields of `spec` declare, all or those of `keys`; two switches may have one key."""
    found: list[Option] = []
    group = ""
    for each in fields(spec):
        for declared in each.metadata.get("options", ()):
            group = declared.group or group
            name = each.name.removesuffix("_s") if declared.metavar == "TIME" else each.name
            flag = declared.flag or "--" + name.replace("_", "-")
            if declared.value is False:
                flag = f"--no-{flag[2:]}"
            found.append(replace(declared, key=each.name, flag=flag, group=group))
    for option in reversed([option for option in found if option.after]):
        found.remove(option)
        place = max(index for index, other in enumerate(found) if other.key == option.after)
        found.insert(place + 1, replace(option, group=found[place].group))
    return tuple(option for option in found if not keys or option.key in keys)


def groups_of(spec: Any, **changes: Any) -> list[Group]:
    """Return the options of `spec` under their headings, each with `changes`."""
    options = [replace(option, **changes) for option in options_of(spec)]
    titles = dict.fromkeys(option.group for option in options)
    return [Group(title, tuple(option for option in options if option.group == title)) for title in titles]


@cache
def checks_of(spec: Any) -> Mapping[str, Check]:
    """Return the check of each field of `spec`, by name."""
    return {option.key: option.check for option in options_of(spec)}


def check_fields(spec: Any) -> None:
    """Check every field of a new `spec` that is not None, and keep what its check returns."""
    for name, check in checks_of(spec.__class__).items():
        value = getattr(spec, name)
        if value is not None:
            object.__setattr__(spec, name, check(value, name))


def given_of(spec: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `values` that are fields of `spec` and not None, in the order of the fields."""
    return {name: values[name] for name in checks_of(spec) if values.get(name) is not None}


def spec_of(spec: type[T], values: Mapping[str, Any]) -> T:
    """Return the `spec` that `values` describe; those that are no fields of it are another's."""
    return spec(**given_of(spec, values))


def values_of(spec: Any) -> dict[str, Any]:
    """Return the fields by name, as a document's `config` has them: some only where they are used."""
    hidden = {option.key for option in options_of(spec.__class__) if option.when_used}
    return {
        each.name: getattr(spec, each.name)
        for each in fields(spec)
        if each.name not in hidden or getattr(spec, each.name) != each.default
    }
