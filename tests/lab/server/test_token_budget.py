"""The token budget of a server that was given none."""

from argparse import ArgumentParser

import mlx.core as mx
import pytest

from tiny_llm_lab.serving.server.command import add_arguments, model_settings
from tiny_llm_lab.types import UserError


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: mx.cpu)


def settings_of(*flags):
    parser = ArgumentParser()
    add_arguments(parser)
    return model_settings(parser.parse_args(flags))


def budget(*flags):
    return settings_of(*flags).engine.config.max_num_batched_tokens


BUDGETS = [
    ("", 256),
    ("--device gpu", 2048),
    ("--itl-slo-ms 50", 2048),
    ("--max-num-seqs 300", 300),
    ("--chunk-grid 256", 320),
    ("--chunk-grid 256 --max-num-seqs 8", 264),
    ("--no-enable-chunked-prefill", 4096),
    ("--no-enable-chunked-prefill --max-model-len 1000", 1000),
    ("--max-num-batched-tokens 700", 700),
]


@pytest.mark.parametrize(("flags", "tokens"), BUDGETS)
def test_the_budget_fits_the_device_and_the_other_flags(flags, tokens):
    assert budget(*flags.split()) == tokens


def test_a_gpu_takes_larger_steps(monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    assert budget() == 2048
    assert budget("--device", "cpu") == 256


def test_steps_are_measured_where_nothing_says_how_long_they_are():
    assert settings_of().fits_steps
    assert not settings_of("--itl-slo-ms", "50").fits_steps
    assert not settings_of("--max-num-batched-tokens", "700").fits_steps


def test_a_budget_that_was_given_is_never_raised():
    with pytest.raises(UserError, match="max_num_seqs"):
        budget("--max-num-batched-tokens", "32")
