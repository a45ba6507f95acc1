"""The flags and names of settings that the benchmarks share."""

from pathlib import Path

from tiny_llm_lab.runtime.console.field_flags import flags_in
from tiny_llm_lab.runtime.models.registry import RANDOM_PREFIX


def shown_fields(settings: object) -> dict[str, object]:
    """The values of the fields that are flags, to be shown in results."""
    return {each.field: getattr(settings, each.field) for each in flags_in(type(settings))}


def random_bits(model: str) -> str:
    """A random model that names no bits gets 4: the engines compared here are 4-bit engines."""
    is_open = (
        model.startswith(RANDOM_PREFIX) and "bits=" not in model and not model.split(",")[0].endswith("-4bit")
    )
    return f"{model},bits=4" if is_open else model


def shown_model(model: str) -> str:
    """The model's name; of a folder the last part, because results travel to other machines."""
    return Path(model).name if Path(model).is_dir() else model
