"""The flags for how tokens are picked and when an answer ends, named as in SamplingParams."""

from argparse import ArgumentParser, Namespace
from typing import Final

from tiny_llm_lab.runtime.console.field_flags import Flag, add_field_flags, at_least_one, given_fields
from tiny_llm_lab.types import SamplingParams

_FLAGS: Final = (
    Flag("temperature", "sampling temperature; 0 is greedy", "T"),
    Flag("top_p", "sample from the likeliest tokens whose probabilities add up to P", "P"),
    Flag("top_k", "sample from the K likeliest tokens; 0 is off", "K"),
    Flag("min_p", "drop tokens less likely than P times the likeliest one", "P"),
    Flag("seed", "seed of the random draws, for --temperature above 0"),
    Flag("stop", "end an answer before this text; may be repeated", "TEXT"),
    Flag("ignore_eos", "continue after an end-of-sequence token"),
)


def add_sampling_arguments(parser: ArgumentParser, max_tokens: int) -> None:
    """How tokens are picked and when an answer ends; the defaults are greedy."""
    limit = Flag("max_tokens", f"most tokens of an answer (default: {max_tokens})", kind=at_least_one)
    add_field_flags(parser, SamplingParams, (limit, *_FLAGS))
    parser.set_defaults(max_tokens=max_tokens)


def sampling_from_args(args: Namespace) -> SamplingParams:
    """The sampling flags; raises UserError for values out of range."""
    given = given_fields(args, SamplingParams)
    return SamplingParams(**given | {"stop": tuple(given.get("stop", ()))})
