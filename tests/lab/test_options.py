"""Flags that several commands share."""

from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from tiny_llm_lab.serving.options.engine_options import server_engine
from tiny_llm_lab.serving.options.engine_settings import RANK_MEMORY
from tiny_llm_lab.serving.options.model_options import add_model_arguments, model_name
from tiny_llm_lab.serving.server import command
from tiny_llm_lab.types import SamplingParams, UserError
from tiny_llm_lab.types.sampling import MAX_TEMPERATURE, MIN_TEMPERATURE


def name_of(*words):
    parser = ArgumentParser()
    add_model_arguments(parser)
    return model_name(parser.parse_args(words))


def test_bits_become_part_of_a_random_model_s_name():
    assert name_of("--model", "random:qwen3-0.6b,layers=2") == "random:qwen3-0.6b,layers=2"
    assert (
        name_of("--bits", "4", "--model", "random:qwen3-0.6b,layers=2") == "random:qwen3-0.6b,layers=2,bits=4"
    )


def test_bits_of_a_saved_model_cannot_be_chosen():
    with pytest.raises(UserError, match="--bits is for a random: model, and default has its own"):
        name_of("--bits", "4")


# The least and the most that a flag takes, and what is just beyond.
RANGES = [
    ("--port", ("0", "65535"), ("-1", "65536", "000000", "1.0", "x")),
    ("--keep-alive-s", ("0", "1000000"), ("-0.001", "1000000.001", "nan", "inf", "x")),
    ("--max-waiting", ("0", "2147483647"), ("-1", "2147483648", "1.5")),
    ("--max-num-seqs", ("1", "2147483647"), ("0", "2147483648")),
    ("--form-timeout-s", ("0.001", "99999999999"), ("0", "-1", "nan", "inf")),
    ("--max-body-size", ("1", "999999999", "512K", "4M"), ("0", "-1", "9999999999", "1X", "-1K")),
]


@pytest.mark.parametrize(("flag", "taken", "refused"), RANGES)
def test_a_range_has_both_of_its_ends(flag, taken, refused):
    for value in taken:
        command._parser().parse_args([flag, value])
    for value in refused:
        with pytest.raises(UserError, match=f"argument {flag}"):
            command._parser().parse_args([f"{flag}={value}"])


def engine_of(*words):
    parser = ArgumentParser()
    command.add_arguments(parser)
    return server_engine(parser.parse_args(words))


@pytest.mark.parametrize("size", ["", "1", "4096", "1.5", "512M"])
def test_ranks_get_equal_memory_and_heed_no_clock(size):
    """A plain number is bytes."""
    flags = ("--kv-cache-memory", size) if size else ()
    alone = engine_of(*flags)
    want = replace(alone, kv_cache_memory=size or RANK_MEMORY, draft_gate=False)
    assert engine_of("-tp", "2", *flags) == engine_of("-tp", "2", "--no-draft-gate", *flags) == want
    assert engine_of("-tp", "1", *flags) == alone != want


BAD: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
    ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
    ({"temperature": True}, "temperature must be a number, not True"),
    ({"top_k": 2.5}, "top_k must be a whole number"),
    ({"min_p": None}, "min_p must be a number, not None"),
    ({"max_tokens": 1.5}, "max_tokens must be a whole number"),
    ({"max_tokens": "9"}, "max_tokens must be a whole number"),
    ({"stop": 3}, "stop must be a string or a tuple of strings"),
    ({"stop": ("a", 3)}, "stop must be a string or a tuple of strings"),
    ({"stop": ""}, "a stop string must not be empty"),
    ({"ignore_eos": "no"}, "ignore_eos must be True or False"),
    ({"detokenize": 1}, "detokenize must be True or False"),
    ({"detokenize": False, "stop": "a"}, "stop strings need detokenize"),
    ({"logit_bias": {"1": 1}}, "a token of logit_bias must be a whole number, not '1'"),
    ({"logit_bias": {1: "a"}}, "a logit_bias must be a number"),
    ({"logit_bias": [1]}, "logit_bias must be a mapping"),
    ({"min_tokens": 3, "max_tokens": 2}, "min_tokens (3) must be at most max_tokens (2)"),
    ({"stop_token_ids": 3}, "stop_token_ids must be a list of token ids"),
    ({"stop_token_ids": [True]}, "stop_token_ids must be a whole number"),
    ({"stop_token_ids": range(99)}, "stop_token_ids must be a list"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs must be StructuredOutputs"),
]


@pytest.mark.parametrize(("given", "complaint"), BAD, ids=lambda value: str(value))
def test_sampling_params_refuse_what_no_sampler_can_use(given, complaint):
    with pytest.raises(UserError) as caught:
        SamplingParams(**given)
    assert complaint in str(caught.value)


def test_the_ends_of_the_ranges_are_usable():
    for seed in (0, 2**64 - 1):
        mx.eval(mx.random.key(SamplingParams(seed=seed).seed))
    scores = mx.array([20.0, 40.0])
    for temperature in (MIN_TEMPERATURE, MAX_TEMPERATURE):
        assert mx.all(mx.isfinite(scores / SamplingParams(temperature=temperature).temperature)).item()
    assert SamplingParams(logprobs=0).logprobs == 0


def test_what_was_given_as_a_mapping_or_a_list_can_be_a_key():
    given: Any = [7, 8]
    first = SamplingParams(logit_bias={9: 1.5, 3: -2}, stop_token_ids=given)
    assert first == SamplingParams(logit_bias={3: -2, 9: 1.5}, stop_token_ids=(7, 8))
    assert hash(first) == hash(SamplingParams(logit_bias={3: -2, 9: 1.5}, stop_token_ids=(7, 8)))
    assert first.logit_bias_pairs == ((3, -2), (9, 1.5))
    assert not SamplingParams().changes_logits


def test_one_string_is_one_stop_string():
    given: Any = "END"
    assert SamplingParams(stop=given).stop == ("END",)
