"""The flags that say how tokens are picked and when an answer ends, named as SamplingParams names them."""

from argparse import ArgumentParser, Namespace
from typing import Final

from tiny_llm_lab.runtime.console.field_flags import Flag, add_field_flags, at_least_one, given_fields
from tiny_llm_lab.types import SamplingParams

_FLAGS: Final = (
    Flag("temperature", "0 is greedy", "T"),
    Flag("top_p", "keep the likeliest tokens up to this mass", "P"),
    Flag("top_k", "keep the k likeliest tokens; 0 is off", "K"),
    Flag("min_p", "drop tokens below this share of the best", "P"),
    Flag("seed", "for --temperature above 0"),
    Flag("stop", "end before this text; may be given several times", "TEXT"),
    Flag("ignore_eos", "go on after an end-of-sequence token"),
)


def add_sampling_arguments(parser: ArgumentParser, max_tokens: int) -> None:
    """How tokens are picked and when an answer ends; the defaults are greedy."""
    limit = Flag("max_tokens", f"most tokens of an answer (default: {max_tokens})", kind=at_least_one)
    add_field_flags(parser, SamplingParams, (limit, *_FLAGS))
    parser.set_defaults(max_tokens=max_tokens)


def sampling_from_args(args: Namespace) -> SamplingParams:
    """The sampling flags; raises UserError for values that make no sense."""
    given = given_fields(args, SamplingParams)
    return SamplingParams(**given | {"stop": tuple(given.get("stop", ()))})
