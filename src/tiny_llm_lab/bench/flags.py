"""Flags that several benchmarks share, and the settings that their results name."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from tiny_llm_lab.models.registry import RANDOM_PREFIX

Numbers = Mapping[str, tuple[int | None, int, str]]  # flag -> default, least value, help


def add_numbers(parser: ArgumentParser, numbers: Numbers) -> None:
    """A whole number for every flag; a default of None is explained by the help text."""
    for flag, (default, least, what) in numbers.items():
        about = what if default is None else f"{what} (default: %(default)s)"
        parser.add_argument(flag, type=at_least(least), default=default, help=about, metavar="N")


def at_least(least: int) -> Callable[[str], int]:
    """The type of a flag: a whole number of `least` or more."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise ArgumentTypeError(f"must be {least} or more, not {value}")
        return value

    return number


def values_of(args: Namespace, flags: Numbers) -> dict[str, int]:
    """The values of `flags` by name, as results show them."""
    names = [flag[2:].replace("-", "_") for flag in flags]
    return {name: getattr(args, name) for name in names}


def random_bits(model: str) -> str:
    """A random model that names no bits gets 4: the engines compared here are 4-bit engines."""
    is_open = (
        model.startswith(RANDOM_PREFIX) and "bits=" not in model and not model.split(",")[0].endswith("-4bit")
    )
    return f"{model},bits=4" if is_open else model


def shown_model(model: str) -> str:
    """The model's name; of a folder the last part, because results travel to other machines."""
    return Path(model).name if Path(model).is_dir() else model
