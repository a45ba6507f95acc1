"""Flags that are declared as fields of a dataclass, and the names that results give to settings."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import field, fields
from pathlib import Path
from typing import cast

from tiny_llm_lab.runtime.models.registry import RANDOM_PREFIX


def count(default: int | None, least: int, about: str) -> int:
    """A field that is a flag: a whole number of `least` or more; `about` explains a default of None."""
    shown = about if default is None else f"{about} (default: %(default)s)"
    return cast(int, field(default=default, metadata={"least": least, "help": shown}))


def add_flags(parser: ArgumentParser, settings: type) -> None:
    """A flag for every `count` of a dataclass."""
    for each in fields(settings):
        if about := each.metadata.get("help"):
            flag = f"--{each.name.replace('_', '-')}"
            kind = at_least(each.metadata["least"])
            parser.add_argument(flag, type=kind, default=each.default, help=about, metavar="N")


def flags_of(args: Namespace, settings: type) -> dict[str, int]:
    """The values of those flags by name, to make the dataclass and to be shown in results."""
    return {each.name: getattr(args, each.name) for each in fields(settings) if "help" in each.metadata}


def at_least(least: int) -> Callable[[str], int]:
    """The type of a flag: a whole number of `least` or more."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise ArgumentTypeError(f"must be {least} or more, not {value}")
        return value

    return number


def random_bits(model: str) -> str:
    """A random model that names no bits gets 4: the engines compared here are 4-bit engines."""
    is_open = (
        model.startswith(RANDOM_PREFIX) and "bits=" not in model and not model.split(",")[0].endswith("-4bit")
    )
    return f"{model},bits=4" if is_open else model


def shown_model(model: str) -> str:
    """The model's name; of a folder the last part, because results travel to other machines."""
    return Path(model).name if Path(model).is_dir() else model
