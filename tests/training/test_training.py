"""What the training of the default model relies on.

Needs PyTorch, so `pytest` collects this folder only when it is named: see CONTRIBUTING.md.
"""

import random
from itertools import pairwise

import pytest
import torch
from recipes.default_model.data import MAX_POSITION, Mix, make_batch, make_positions
from recipes.default_model.delta_rule import chunkwise
from recipes.default_model.encoding import CorpusEncoder
from recipes.default_model.hybrid import HYBRID_SHAPE, Hybrid, start_from_default
from recipes.default_model.induction_init import init_induction_heads
from recipes.default_model.model import DEFAULT_SHAPE, Qwen3, Shape
from recipes.default_model.tokenizer import train_tokenizer
from safetensors.torch import load_file

from tiny_llm_lab.runtime.models.registry import DEFAULT, SHIPPED


@pytest.fixture(scope="module")
def encoder():
    return CorpusEncoder(train_tokenizer(1))


def repeats_right(model):
    """The share of tokens predicted right when a random row is said a second time."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(3, DEFAULT_SHAPE.vocab_size, (8, 40), generator=generator)
    rows = torch.cat((row, row), dim=1)
    with torch.inference_mode():
        predicted = model(rows, torch.arange(80).expand(8, 80)).argmax(-1)
    return float((predicted[:, 40:-1] == rows[:, 41:]).float().mean())


def test_the_induction_init_recalls_repeats_before_any_training():
    torch.manual_seed(0)
    model = Qwen3(DEFAULT_SHAPE)
    assert repeats_right(model) < 0.05
    init_induction_heads(model, 0)
    assert repeats_right(model) > 0.5


def test_the_model_has_the_parameters_that_the_card_says():
    assert sum(parameter.numel() for parameter in Qwen3(Shape()).parameters()) == 2_164_928


MIXES = [Mix(1.0, 0.0), Mix(0.0, 1.0, 0.1, position_gaps=1.0), Mix(0.0, 0.0), Mix(0.5, 0.5, forms=1.0)]


@pytest.mark.parametrize("mix", MIXES)
def test_a_batch_is_the_same_for_its_seed_and_has_something_to_learn(mix, encoder):
    first, again = (make_batch("seed", 8, 128, mix, encoder) for _ in range(2))
    other = make_batch("another seed", 8, 128, mix, encoder)
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.positions, again.positions)
    assert not torch.equal(first.tokens, other.tokens)
    assert torch.equal(first.tokens[:, 1:], first.targets[:, :-1])
    assert first.tokens.shape == first.weights.shape == (8, 128)
    assert first.weights.gt(0).float().mean() > 0.1


def test_positions_jump_forward_and_stay_in_range():
    rng = random.Random(1)
    for _ in range(200):
        positions = make_positions(rng, 64, gaps=True)
        assert all(after > before for before, after in pairwise(positions))
        assert positions[0] == 0
        assert positions[-1] < MAX_POSITION


def recurrent(q, k, v, log_decay, beta):
    """What `chunkwise` computes, token by token."""
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for t in range(q.shape[2]):
        key = k[:, :, t, :, None]
        state = log_decay[:, :, t, None, None].exp() * state
        missing = v[:, :, t, None] - key.mT @ state
        state = state + key @ (beta[:, :, t, None, None] * missing)
        outputs.append((q[:, :, t, None] @ state)[:, :, 0])
    return torch.stack(outputs, dim=2)


@pytest.mark.parametrize("length", [1, 64, 150])
def test_the_chunkwise_form_is_the_recurrence(length):
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, 3, length, dim, generator=generator) for dim in (16, 16, 24))
    k = k / k.norm(dim=-1, keepdim=True)
    log_decay, beta = (torch.rand(2, 3, length, generator=generator) * scale for scale in (-0.3, 1.0))
    got = chunkwise(q, k, v, log_decay, beta)
    want = recurrent(*(each.double() for each in (q, k, v, log_decay, beta)))
    assert (got - want).abs().max() < 1e-5 * want.abs().max()


def test_the_hybrid_starts_where_the_default_model_is():
    """Its layers look back before any training, so that repeats are recalled."""
    torch.manual_seed(0)
    model = Hybrid(HYBRID_SHAPE)
    assert repeats_right(model) < 0.05
    start_from_default(model, load_file(SHIPPED[DEFAULT] / "model.safetensors"))
    assert repeats_right(model) > 0.5
