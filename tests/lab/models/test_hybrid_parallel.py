"""A hybrid on several ranks: who computes what changes; what is computed does not."""

import mlx.core as mx
import pytest
from tests.helpers import rank
from tests.helpers.devices import on_cpu
from tests.helpers.tolerance import EXACT, assert_close

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import QuantizedWeights, UserError
from tiny_llm_ref.models.parallel import shard_checkpoint

DENSE, EXPERTS = "random:qwen3.5-shrunk", "random:qwen3.5-moe-shrunk"
# Packed in groups of 32: a rank has 2 of 4 value heads of 32 numbers.
PACKED = f"{DENSE},bits=4,group=32,value_dim=32"
NAMES = [DENSE, EXPERTS, "random:qwen3-next-shrunk", PACKED]
llm = load_solution("ref")


def checkpoint_of(name):
    return load_checkpoint(name, dtype="float32")


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_holds_its_part_of_everything_that_grows(name):
    checkpoint = checkpoint_of(name)
    parts = [shard_checkpoint(checkpoint, each, 2) for each in range(2)]
    for part in parts:
        assert 2 * part.config.state_bytes == checkpoint.config.state_bytes
        model = llm.build_model(part)
        cache = model.create_paged_kv_cache(3, 8)
        assert {each.shape[1] for each in cache.keys} == {part.config.num_key_value_heads} == {1}
        model(mx.array([[1, 2, 3]]))
    for module in ("linear_attn.in_proj_qkv", "linear_attn.out_proj"):
        w, halves = checkpoint.weights[f"model.layers.0.{module}.weight"], 0
        for part in parts:
            half = part.weights[f"model.layers.0.{module}.weight"]
            assert isinstance(half, QuantizedWeights) == isinstance(w, QuantizedWeights)
            halves += half.nbytes
        assert halves == w.nbytes
    norm = "model.layers.0.linear_attn.norm.weight"
    assert_close(parts[1].weights[norm], checkpoint.weights[norm], EXACT)


def test_what_cannot_be_split_is_said_in_one_line():
    checkpoint = checkpoint_of(f"{DENSE},heads=3,kv_heads=3")
    with pytest.raises(UserError, match=r"^2 key heads of a delta net cannot be split over 3 ranks: choose"):
        shard_checkpoint(checkpoint, 0, 3)
    with pytest.raises(UserError, match=r"^4 query and 2 kv heads cannot be split over 3 ranks"):
        shard_checkpoint(checkpoint_of(DENSE), 0, 3)
    # Both value heads of a rank are 40 numbers of groups of 32.
    with pytest.raises(UserError, match=r"cut groups of model.layers.0.linear_attn.out_proj.weight: "):
        shard_checkpoint(checkpoint_of(f"{DENSE},bits=4,group=32,value_dim=40"), 0, 2)
    whole = checkpoint_of(DENSE)
    assert shard_checkpoint(whole, 0, 1) is whole


RANKS = [(EXPERTS, "off"), (PACKED, "cpp"), ("random:qwen2-moe-shrunk", "cpp")]


@pytest.mark.parametrize(("name", "kernels"), RANKS)
def test_ranks_say_what_one_process_says(name, kernels, ranks_of):
    checkpoint = checkpoint_of(name)
    with on_cpu(kernels):
        want = rank.of_model(llm, llm.build_model(checkpoint), checkpoint.tokenizer, name)
    rank.check_answers(ranks_of(2).answers(name, kernels), want)
