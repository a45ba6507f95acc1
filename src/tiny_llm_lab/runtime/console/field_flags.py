"""Flags made from the fields of a dataclass: the annotation gives the type, the field its default.

A field says what its flag is by `flag(...)` in place of its default, or a list of `Flag` does.
"""

import math
from argparse import SUPPRESS, ArgumentTypeError, BooleanOptionalAction, Namespace, _ActionsContainer
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
_MOST: Final = 2**31 - 1  # nobody needs more tokens, requests or rounds


@dataclass(frozen=True)
class Flag:
    """What a field's annotation does not say about its flag; without a `kind` it says how to read a value."""

    field: str
    about: str
    metavar: str = "N"
    kind: Callable[[str], object] | None = None
    alias: str | None = None


def flag(
    default: T,
    about: str,
    kind: Callable[[str], object] | None = None,
    alias: str | None = None,
    metavar: str = "N",
) -> T:
    """A field with this default that is a flag."""
    return field(default=default, metadata={"flag": (about, metavar, kind, alias)})


def flags_in(settings: type) -> list[Flag]:
    """The fields that `flag` made."""
    return [Flag(each.name, *each.metadata["flag"]) for each in fields(settings) if "flag" in each.metadata]


def add_field_flags(group: _ActionsContainer, settings: type, flags: Iterable[Flag] | None = None) -> None:
    """A flag for each field of the dataclass `settings`; one that is not given leaves no attribute.

    `flags` None: those that its fields declare.
    """
    hints = get_type_hints(settings)
    defaults = {each.name: each.default for each in fields(settings)}
    for flag in flags_in(settings) if flags is None else flags:
        group.add_argument(
            flag_name(flag.field),
            *([flag.alias] if flag.alias else []),
            default=SUPPRESS,
            help=flag.about
            if "(default: " in flag.about
            else f"{flag.about} (default: {_shown(defaults[flag.field])})",
            **_reading(hints[flag.field], flag),
        )


def given_fields(args: Namespace, settings: type) -> dict[str, Any]:
    """The fields of `settings` whose flags were given; only those that declare a flag, if any do."""
    names = [each.field for each in flags_in(settings)] or [each.name for each in fields(settings)]
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    # A flag that is repeated makes a list.
    return {name: tuple(each) if isinstance(each, list) else each for name, each in given.items()}


def flag_name(field: str, value: object = None) -> str:
    """The flag of a field; a switch that is False was turned off by its --no- form."""
    return ("--no-" if value is False else "--") + field.replace("_", "-")


def at_least(least: int) -> Callable[[str], int]:
    """The type of a count: a whole number, `least` or more."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"must be a whole number, not {text!r}") from None
        if value < least:
            raise ArgumentTypeError(f"must be {least} or more, not {value}")
        if value > _MOST:
            raise ArgumentTypeError(f"must be at most {_MOST}, not a number of {len(text.strip())} digits")
        return value

    return number


at_least_one: Final = at_least(1)


def above_zero(text: str) -> float:
    """The type of a flag: a finite number above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise ArgumentTypeError(f"must be above 0 and finite, not {text}")
    return value


def zero_or_more(text: str) -> float:
    """The type of a flag: a finite number that is not negative."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"must be 0 or more and finite, not {text}")
    return value


def _shown(default: object) -> str:
    if default == ():
        return "none"
    return {"True": "on", "False": "off", "None": "off"}.get(str(default), str(default))


def _reading(hint: Any, flag: Flag) -> dict[str, Any]:
    """The arguments of `add_argument` that say how a value of an annotation is read."""
    if hint in (bool, bool | None):
        return {"action": BooleanOptionalAction}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is tuple:
        return {"action": "append", "metavar": flag.metavar}
    [kind] = [each for each in get_args(hint) or (hint,) if each is not NoneType]
    return {"type": flag.kind or kind, "metavar": flag.metavar}
