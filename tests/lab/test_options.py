"""Flags that several commands share."""

from argparse import ArgumentParser

import pytest

from tiny_llm_lab.commands.options import add_model_arguments, model_name
from tiny_llm_lab.types import SamplingParams, UserError


def name_of(*words: str) -> str:
    parser = ArgumentParser()
    add_model_arguments(parser)
    return model_name(parser.parse_args(words))


def test_bits_become_part_of_a_random_model_s_name() -> None:
    assert name_of("--model", "random:qwen3-0.6b,layers=2") == "random:qwen3-0.6b,layers=2"
    assert (
        name_of("--bits", "4", "--model", "random:qwen3-0.6b,layers=2") == "random:qwen3-0.6b,layers=2,bits=4"
    )


def test_bits_of_a_saved_model_cannot_be_chosen() -> None:
    with pytest.raises(UserError, match="--bits goes with a random: model; default has the bits"):
        name_of("--bits", "4")


@pytest.mark.parametrize("count", [-1, 21])
def test_how_many_logprobs_may_be_asked_for(count: int) -> None:
    with pytest.raises(UserError, match="logprobs must be 0 to 20"):
        SamplingParams(logprobs=count)
    assert SamplingParams(logprobs=0).logprobs == 0
