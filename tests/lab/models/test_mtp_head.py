"""The draft layer of a hybrid: read where a checkpoint has it, and its logits against float64."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import hybrid_oracle, oracle
from tests.helpers.checkpoints import differing, edit_tensors, save_tensors, tensors_of
from tests.helpers.devices import on_cpu
from tests.helpers.experts import wide
from tests.helpers.qwen_oracle import below
from tests.lab.models.test_hybrid_layouts import numbered

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import QuantizedWeights, UserError, Wanted
from tiny_llm_ref.models.mtp import MtpHead

NAMES = [
    "random:qwen3.5-shrunk,mtp=1",
    "random:qwen3.5-moe-shrunk,mtp=1",
    "random:qwen3-next-shrunk,mtp=1,bits=4,group=32,value_dim=40",
]
RELATIVE = 1e-4  # of the largest logit, as for the model itself
llm = load_solution("ref")


def head_of(name, kernels="cpp", dtype="float32"):
    checkpoint = load_checkpoint(name, dtype=dtype)
    with on_cpu(kernels):
        return MtpHead(llm.build_model(checkpoint), checkpoint.weights)


def some_input(dtype=mx.float32):
    hidden = mx.random.normal((2, 40, 64), key=mx.random.key(1)).astype(dtype)
    return hidden, mx.random.randint(0, 320, (2, 40), key=mx.random.key(2))


def wanted_logits(config, weights, hidden, tokens):
    assert config.hybrid is not None
    own, eps = below("mtp.", weights), config.rms_norm_eps
    table = wide(weights["model.embed_tokens.weight"])
    embedded = oracle.rms_norm(table[np.array(tokens)], own["pre_fc_norm_embedding.weight"], eps)
    seen = oracle.rms_norm(hidden, own["pre_fc_norm_hidden.weight"], eps)
    x = np.concatenate([embedded, seen], axis=-1) @ wide(own["fc.weight"]).T
    layer = below("layers.0.", own)
    normed = oracle.rms_norm(x, layer["input_layernorm.weight"], eps)
    x = x + hybrid_oracle.attention(config, config.hybrid, below("self_attn.", layer), normed)
    normed = oracle.rms_norm(x, layer["post_attention_layernorm.weight"], eps)
    x = oracle.rms_norm(
        x + hybrid_oracle.feed_forward(config, below("mlp.", layer), normed), own["norm.weight"], eps
    )
    return x @ (table if config.tie_word_embeddings else wide(weights["lm_head.weight"])).T


@pytest.mark.parametrize("kernels", ["cpp", "mlx", "off"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_float64(name, kernels):
    checkpoint, (hidden, tokens) = load_checkpoint(name, dtype="float32"), some_input()
    want = wanted_logits(checkpoint.config, checkpoint.weights, hidden, tokens)
    got = np.array(head_of(name, kernels)(hidden, tokens, [0, 0])[1])
    assert np.abs(got - want).max() < RELATIVE * np.abs(want).max()


@pytest.mark.parametrize("name", NAMES)
def test_chunks_and_company_change_no_bit(name):
    head, (hidden, tokens) = head_of(name, dtype="bfloat16"), some_input(mx.bfloat16)
    _, whole = head(hidden, tokens, [0, 0])
    assert whole.dtype == mx.bfloat16
    for size in (1, 7, 33):
        cache, parts = head.create_cache(), []
        for start in range(0, 40, size):
            part = slice(start, start + size)
            parts.append(head(hidden[:1, part], tokens[:1, part], [start], cache)[1])
        assert mx.array_equal(mx.concatenate(parts, axis=1), whole[:1]), f"chunks of {size}"
    assert mx.array_equal(head(hidden, tokens, [0, 0], wanted=Wanted(last=2))[1], whole[:, -2:])


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_the_same_with_and_without_it(name, capsys):
    tokens = mx.random.randint(0, 320, (1, 20), key=mx.random.key(3))
    without, with_it = (load_checkpoint(each) for each in (name.replace(",mtp=1", ""), name))
    assert capsys.readouterr().err == ""
    drafts = with_it.weights.keys() - without.weights.keys()
    assert drafts == {each for each in with_it.weights if each.startswith("mtp.")} != set()
    assert mx.array_equal(llm.build_model(with_it)(tokens), llm.build_model(without)(tokens))
    fc = with_it.weights["mtp.fc.weight"]
    assert isinstance(fc, QuantizedWeights) == ("bits=4" in name)


def test_a_checkpoint_without_it_says_so():
    with pytest.raises(UserError, match=r"^this checkpoint has no draft layer \(mtp\.\*\): choose"):
        head_of("random:qwen3.5-shrunk")


def test_the_option_is_for_hybrids():
    for name in ("random:qwen3-shrunk,mtp=1", "random:qwen3.5-shrunk,mtp=3"):
        with pytest.raises(UserError, match=r"mtp must be 0, or 1 or 2 for a hybrid$"):
            load_checkpoint(name)


def test_experts_of_a_draft_layer_under_another_name_than_the_model_s(copy):
    name = NAMES[1]
    folder = copy(name)
    tensors = tensors_of(folder)
    own = {each: tensors.pop(each) for each in list(tensors) if each.startswith("mtp.")}
    save_tensors(folder, tensors | numbered(own))
    assert differing(folder, name) == []


NOT_WHOLE = [{"mtp.norm.weight": None}, {"mtp.layers.1.mlp.up_proj.weight": mx.ones((2, 2))}]


@pytest.mark.parametrize("changes", NOT_WHOLE, ids=["a part is missing", "two layers"])
def test_a_draft_layer_that_is_not_whole_or_not_alone(copy, changes, capsys):
    folder = copy(NAMES[0])
    edit_tensors(folder, changes)
    assert differing(folder, "random:qwen3.5-shrunk") == []
    assert "tensors of a draft layer (mtp) that is not whole, or not alone" in capsys.readouterr().err
