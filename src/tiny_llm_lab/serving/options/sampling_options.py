"""The flags for how tokens are picked and when an answer ends, named as in SamplingParams."""

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.runtime.console.field_flags import Flag, add_field_flags, at_least_one, given_fields
from tiny_llm_lab.runtime.models.recommended import recommended_sampling
from tiny_llm_lab.types import SamplingParams

_DRAWS: Final = (
    Flag("temperature", "sampling temperature; 0 is greedy", "T"),
    Flag("top_p", "sample from the likeliest tokens whose probabilities add up to P", "P"),
    Flag("top_k", "sample from the K likeliest tokens; 0 is off", "K"),
    Flag("min_p", "drop tokens less likely than P times the likeliest one", "P"),
)
_PENALTIES: Final = (
    Flag("repetition_penalty", "above 1: tokens of prompt and answer become less likely", "X"),
    Flag("presence_penalty", "above 0: tokens of the answer become less likely", "X"),
    Flag("frequency_penalty", "above 0: the same, for each time that they occur", "X"),
)
_DRAWN: Final = tuple(each.field for each in (*_DRAWS, *_PENALTIES))
_ENDS: Final = (
    Flag("seed", "seed of the random draws, for --temperature above 0"),
    Flag("stop", "end an answer before this text; may be repeated", "TEXT"),
    Flag("ignore_eos", "continue after an end-of-sequence token"),
)


def add_sampling_arguments(parser: ArgumentParser, max_tokens: int) -> None:
    """How tokens are picked and when an answer ends; the defaults are greedy."""
    limit = Flag("max_tokens", f"most tokens of an answer (default: {max_tokens})", kind=at_least_one)
    add_field_flags(parser, SamplingParams, (limit, *_DRAWS, *_ENDS))
    parser.set_defaults(max_tokens=max_tokens)


def sampling_from_args(args: Namespace) -> SamplingParams:
    """The sampling flags; raises UserError for values out of range."""
    return SamplingParams(**given_fields(args, SamplingParams))


def add_draw_arguments(parser: ArgumentParser, whose: str = "model") -> None:
    """How the answers of a benchmark are drawn; what is not given is as `whose` settings ask for."""
    group = parser.add_argument_group("sampling")
    flags = (replace(each, about=f"{each.about} (default: the {whose}'s)") for each in (*_DRAWS, *_PENALTIES))
    add_field_flags(group, SamplingParams, flags)


def given_draws(args: Namespace) -> dict[str, Any]:
    """The fields whose flags of `add_draw_arguments` were given."""
    return {name: getattr(args, name) for name in _DRAWN if hasattr(args, name)}


def draws_from_args(args: Namespace, folder: Path) -> SamplingParams:
    """What a checkpoint recommends, and else greedy decoding, but for what was given.

    Raises UserError for values out of range.
    """
    own = recommended_sampling(folder)
    asked: dict[str, Any] = ({"temperature": 1.0} if own else {}) | own | given_draws(args)
    return SamplingParams(**asked | {"top_k": max(0, asked.get("top_k", 0))})


def shown_sampling(sampling: SamplingParams) -> str:
    """How tokens are picked: "greedy", or "temperature 0.6, top_p 0.95", with penalties if there are any."""
    is_greedy = sampling.temperature == 0
    values = {name: getattr(sampling, name) for name in _DRAWN[len(_DRAWS) if is_greedy else 0 :]}
    sentences = [
        f"{name} {value:g}" for name, value in values.items() if value != getattr(SamplingParams, name)
    ]
    return ", ".join(["greedy", *sentences] if is_greedy else sentences)
