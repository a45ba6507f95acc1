"""Stretched rotary positions: what `config.json` says, against mlx-lm's operators and its whole model."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope
from tests.helpers.checkpoints import edit_json
from tests.helpers.tolerance import F32, Tolerance, assert_close

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.types import RopeScaling, UserError, Wanted
from tiny_llm_ref.layers.positional_encoding import RoPE

# An angle is known to position * 2^-23 radians in float32, and an operator may round it twice.
FAR = Tolerance(1e-3, 1e-3)
LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"type": "dynamic", "factor": 4.0}
SCALINGS = [
    LINEAR,
    DYNAMIC,
    YARN,
    {**YARN, "factor": 32.0, "original_max_position_embeddings": 64},
    {**YARN, "beta_fast": 8, "beta_slow": 2},
    # Both limits on one pair.
    {**YARN, "beta_fast": 1e-6, "beta_slow": 1e-6},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    LLAMA3,
    {**LLAMA3, "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0},
]


def config_of(folder, **changes):
    edit_json(folder / "config.json", **changes)
    return read_config(folder / "config.json")[0]


def rope_of(config):
    return RoPE(
        config.head_dim, config.max_position_embeddings, config.rope_theta, scaling=config.rope_scaling
    )


@pytest.mark.parametrize("settings", SCALINGS, ids=str)
def test_rotations_equal_those_of_mlx_lm(copy, settings):
    folder = copy("random:qwen3-shrunk")
    config = config_of(folder, rope_scaling=settings, rope_theta=10000.0)
    rope, dims = rope_of(config), config.head_dim
    theirs = initialize_rope(dims, 10000.0, False, settings, 512)
    x = mx.array(np.random.default_rng(0).normal(size=(1, 3, 2, dims)).astype(np.float32))
    for position in (0, 1, 7, 100, 509, config.max_position_embeddings - 3):
        want = theirs(x.transpose(0, 2, 1, 3), offset=position).transpose(0, 2, 1, 3)
        assert_close(rope(x, [position]), want, F32 if position < 10 else FAR, what=f"position {position}")


@pytest.mark.parametrize("settings", SCALINGS, ids=str)
def test_periods_and_magnitude_are_what_the_fused_operator_takes(copy, settings):
    config = config_of(copy("random:qwen3-shrunk"), rope_scaling=settings)
    rope, dims = rope_of(config), config.head_dim
    assert rope.periods.dtype == mx.float32 and rope.periods.shape == (dims // 2,)
    assert isinstance(rope.magnitude, float)
    x = mx.array(np.random.default_rng(0).normal(size=(1, 3, 2, dims)).astype(np.float32))
    fused = mx.fast.rope(
        rope.magnitude * x.transpose(0, 2, 1, 3),
        dims,
        traditional=False,
        base=None,
        scale=1.0,
        offset=200,
        freqs=rope.periods,
    )
    assert_close(rope(x, [200]), fused.transpose(0, 2, 1, 3), FAR)


def test_yarn_by_the_formulas_of_the_paper():
    """In float64, for the numbers of Qwen's model cards."""
    scaling = RopeScaling("yarn", 4.0, 32768, magnitude=0.1 * np.log(4.0) + 1)
    base, dims = 1e6, 128
    frequencies = base ** (-np.arange(0, dims, 2) / dims)
    turns = 32768 * frequencies / (2 * np.pi)
    got = np.array(scaling.scaled(mx.array(frequencies.astype(np.float32)), base)) / frequencies
    np.testing.assert_allclose(got[turns > 40], 1.0, rtol=1e-6)
    np.testing.assert_allclose(got[turns < 0.8], 0.25, rtol=1e-6)
    between = got[(turns < 28) & (turns > 1.2)]
    assert len(between) > 5 and np.all(np.diff(between) < 0) and 0.25 < between[-1] < between[0] < 1


def test_limits_of_the_blend_that_are_not_rounded():
    exact = RopeScaling("yarn", 4.0, 512, truncate=False)
    rounded = RopeScaling("yarn", 4.0, 512)
    frequencies = mx.array((10000.0 ** (-np.arange(16) / 16)).astype(np.float32))
    got = np.array(exact.scaled(frequencies, 10000.0) / frequencies).astype(np.float64)
    # The pair that turns 32 times is the first of the blend, the one that turns once the last.
    first, last = (16 * np.log(512 / (2 * np.pi * turns)) / np.log(10000.0) for turns in (32, 1))
    ramp = np.clip((np.arange(16) - first) / (last - first), 0, 1)
    np.testing.assert_allclose(got, 1 - ramp * 0.75, rtol=1e-5)
    assert not mx.allclose(rounded.scaled(frequencies, 10000.0), exact.scaled(frequencies, 10000.0))


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("name", ["random:qwen3-shrunk", "random:qwen2.5-shrunk", "random:llama-shrunk"])
@pytest.mark.parametrize("settings", [LINEAR, YARN, {**YARN, "attention_factor": 1.3}, LLAMA3], ids=str)
def test_a_whole_model_equals_that_of_mlx_lm(copy, name, settings, key):
    folder = copy(name)
    settings = {**settings, "rope_theta": 10000.0}
    edit_json(folder / "config.json", **{"rope_theta": ..., "rope_scaling": None, key: settings})
    checkpoint = load_checkpoint(str(folder), dtype="float32")
    ref, mlx_lm = (load_solution(solution).build_model(checkpoint) for solution in ("ref", "mlx-lm"))
    tokens = mx.array(np.random.default_rng(1).integers(0, 320, (1, 700)).astype(np.int32))[:, :512]
    if settings["rope_type"] == "yarn":  # further than the first training
        assert checkpoint.config.max_position_embeddings == 2048
        tokens = mx.concatenate([tokens, tokens[:, :188]], axis=1)
    got, want = (model(tokens, wanted=Wanted(last=20)) for model in (ref, mlx_lm))
    assert_close(got, want, FAR, legend="[B, L, V]")
    edit_json(folder / "config.json", rope_theta=10000.0, **{key: ...})
    plain = load_checkpoint(str(folder), dtype="float32")
    unscaled = load_solution("ref").build_model(plain)(tokens[:, :512], wanted=Wanted(last=20))
    scaled = ref(tokens[:, :512], wanted=Wanted(last=20))
    assert float(mx.max(mx.abs(unscaled - scaled)).item()) > 0.1, "the scaling changes nothing"


IGNORED = [
    ("random:qwen3-shrunk", {**YARN, "truncate": False}, "truncate"),
    ("random:qwen3-moe-shrunk", YARN, "rope_scaling"),
    ("random:qwen2-moe-shrunk", YARN, "rope_scaling in qwen2_moe"),
    ("random:qwen2-moe-shrunk,norm_topk=1", {}, "norm_topk_prob and dense layers in qwen2_moe"),
    ("random:qwen2-moe-shrunk,sparse_step=2", {}, "norm_topk_prob and dense layers in qwen2_moe"),
]


@pytest.mark.parametrize(("name", "settings", "what"), IGNORED)
def test_mlx_lm_is_not_asked_for_what_it_would_ignore(copy, name, settings, what):
    folder = copy(name, rope_scaling=settings)
    with pytest.raises(UserError, match=f"mlx-lm ignores {what}"):
        load_solution("mlx-lm").build_model(load_checkpoint(str(folder), dtype="float32"))


def test_what_is_read(copy):
    folder = copy("random:qwen3-shrunk")

    def scaling(**settings):
        return config_of(folder, rope_scaling=settings).rope_scaling

    assert scaling(**LINEAR) == RopeScaling("linear", 8.0, 512)
    assert scaling(**DYNAMIC) is None and scaling(type="default") is None
    assert scaling(**YARN) == RopeScaling("yarn", 4.0, 512, 0.1 * np.log(4.0) + 1)
    read = scaling(**YARN, attention_factor=1.5, beta_fast=16, beta_slow=2, truncate=False)
    assert read == RopeScaling("yarn", 4.0, 512, 1.5, 16.0, 2.0, truncate=False)
    # As transformers: one of the two alone has no influence.
    assert scaling(**YARN, mscale=0.5) == scaling(**YARN)
    assert scaling(**LLAMA3) == RopeScaling("llama3", 8.0, 64, beta_fast=4.0, beta_slow=1.0)
    assert scaling(**{**YARN, "factor": 1}) == RopeScaling("yarn", 1.0, 512)


@pytest.mark.parametrize(("stated", "reached"), [(512, 2048), (2048, 2048), (4096, 4096)])
def test_yarn_reaches_as_far_as_it_stretches(copy, stated, reached):
    config = config_of(copy("random:qwen3-shrunk"), rope_scaling=YARN, max_position_embeddings=stated)
    assert config.max_position_embeddings == reached
