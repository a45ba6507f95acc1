"""What a simulation is fed: requests drawn from a seed, and the cost of a step."""

from argparse import ArgumentParser

import pytest

from tiny_llm_lab.measure.simulate.cost import Calibrated, load_calibration, roofline
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.measure.traffic.lengths import LENGTHS, draw_requests, parse_lengths
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.console.field_flags import add_field_flags, given_fields
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.types import UserError


def test_the_same_seed_gives_the_same_requests_closer_together():
    slow, fast = (draw_requests(50, rate, 0.5, LENGTHS["chat"], 3, 4096) for rate in (1.0, 4.0))
    assert [each.arrival_s for each in fast] == [each.arrival_s / 4 for each in slow]
    assert [each.prompt_len for each in fast] == [each.prompt_len for each in slow]
    assert slow != draw_requests(50, 1.0, 0.5, LENGTHS["chat"], 4, 4096)


def test_lengths_have_their_medians_and_fit_the_model():
    requests = draw_requests(5001, 1.0, 1.0, parse_lengths("sharegpt"), 0, 100_000)
    prompts = sorted(each.prompt_len for each in requests)
    assert prompts[2500] == pytest.approx(1730, rel=0.06)
    tight = draw_requests(500, 1.0, 1.0, parse_lengths("documents"), 0, 300)
    assert all(min(each.prompt_len, each.max_tokens) >= 1 for each in tight)
    assert max(each.prompt_len + each.max_tokens for each in tight) == 300
    assert draw_requests(1, 1.0, 1.0, parse_lengths("fixed:7:5"), 0, 99) == [Request("", 7, 5)]


def test_the_requests_are_what_they_always_were():
    assert [
        (each.prompt_len, each.max_tokens, round(each.arrival_s, 9))
        for each in draw_requests(4, 2.0, 0.5, LENGTHS["documents"], 7, 4096)
    ] == [(66, 196, 0.0), (96, 134, 0.146994389), (486, 93, 0.740922289), (98, 97, 1.143451617)]


# Step costs


def test_roofline_of_an_8b_model():
    cost = roofline(parse_shape("qwen3-8b"), gb_per_s=1000, tflop_per_s=100, overhead_s=0.001)
    # 36 layers of 4096 x 128 x 2 x (32 + 8) and 3 x 4096 x 12288 weights, and a head of 151936 x 4096.
    in_layers = 36 * (41_943_040 + 150_994_944)
    assert cost.token_s == pytest.approx(2 * in_layers / 1e14)
    assert cost.weight_s == pytest.approx(2 * (in_layers + 622_329_856) / 1e12)
    assert cost.stored_s == pytest.approx(147_456 / 1e12)
    # One token alone: weights and its own cache. Two thousand: arithmetic.
    assert cost.seconds(1, 1, 1) == pytest.approx(0.001 + cost.weight_s + cost.stored_s)
    assert cost.seconds(2048, 10**7, 2048) == pytest.approx(
        0.001 + 2048 * cost.token_s + 10**7 * cost.attended_s
    )


def test_a_machine_is_a_calibration_file(tmp_path):
    parser = ArgumentParser()
    add_field_flags(parser, Setting)
    file = tmp_path / "step-times.json"
    file.write_text('{"split_tokens": 8, "small": [1, 0, 0, 0], "large": [2, 0, 0, 0]}')
    setting = Setting(**given_fields(parser.parse_args(["--machine", str(file)]), Setting))
    assert setting.step_cost().seconds(9, 0, 0) == 2


def test_calibration_files(tmp_path):
    path = tmp_path / "steps.json"
    path.write_text('{"split_tokens": 32, "small": [0.01, 0, 0, 1e-7], "large": [0.001, 1e-4, 0, 0]}')
    cost = load_calibration(path)
    assert cost == Calibrated(32, (0.01, 0, 0, 1e-7), (0.001, 1e-4, 0, 0))
    assert cost.seconds(32, 5, 1000) == pytest.approx(0.0101)
    assert cost.seconds(33, 5, 1000) == pytest.approx(0.0043)
    for text in ("[]", "{}", "nonsense", '{"split_tokens": 1, "small": [1], "large": [1]}'):
        path.write_text(text)
        with pytest.raises(UserError, match="split_tokens"):
            load_calibration(path)
    with pytest.raises(UserError, match="cannot read"):
        load_calibration(tmp_path / "missing.json")
