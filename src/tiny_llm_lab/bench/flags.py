"""Flags that several benchmarks share, and the settings that their results name."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

from tiny_llm_lab.models.registry import RANDOM_PREFIX
from tiny_llm_lab.types import UserError

Numbers = Mapping[str, tuple[int, str]]  # flag -> default, help


def add_numbers(parser: ArgumentParser, numbers: Numbers) -> None:
    """A whole number for every flag."""
    for flag, (default, what) in numbers.items():
        parser.add_argument(flag, type=int, default=default, help=f"{what} (default: %(default)s)")


def check_numbers(args: Namespace, least: Mapping[str, int]) -> None:
    """Raise UserError unless each flag that was given is at least `least[flag]`."""
    for flag, smallest in least.items():
        value = getattr(args, flag[2:].replace("-", "_"))
        if value is not None and value < smallest:
            raise UserError(f"{flag} must be {smallest} or more, not {value}")


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
