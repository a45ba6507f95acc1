"""--activation-bits 8: whose weights it reaches, what it changes, and what it leaves alone."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.experts import pack
from tests.helpers.matrices import assert_same_bits
from tests.helpers.tolerance import as_float64
from tests.helpers.toy import random_tokens

from tiny_llm_lab import load_checkpoint, load_solution, native
from tiny_llm_lab.commands.options import load
from tiny_llm_lab.corpus.chatml import render_prompt
from tiny_llm_lab.corpus.recall import recall_questions
from tiny_llm_lab.models.weights import with_activation_bits
from tiny_llm_lab.types import Prompt, QuantizedWeights, SamplingParams, UserError

MODEL = "random:qwen3-shrunk,bits=4"


@pytest.fixture(autouse=True)
def _kernels_on(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "cpp")


def logits_of(loaded, chunk=70):
    tokens, cache = random_tokens(3, 1, 70), loaded.model.create_kv_cache()
    parts = [loaded.model(tokens[:, at : at + chunk], at, cache) for at in range(0, 70, chunk)]
    out = mx.concatenate(parts, axis=1)
    mx.eval(out)
    return out


@pytest.mark.parametrize("model", [MODEL, "random:qwen3-moe-shrunk,bits=4"])
def test_logits_are_a_little_off(model):
    """By more than bfloat16 is, and by less than 4-bit weights are."""
    exact, rounded = (
        as_float64(logits_of(load(model, "ref", "cpu", "bfloat16", activation_bits=bits))[0])
        for bits in (None, 8)
    )
    errors = np.sqrt(np.mean((rounded - exact) ** 2, axis=-1) / np.mean(exact**2, axis=-1))
    # The median: where two experts' scores are nearly equal a rounding decides, and such a token is far off.
    assert 0.002 < np.median(errors) < 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_over_chunks(dtype):
    loaded = load(MODEL, "ref", "cpu", dtype, activation_bits=8)
    want = logits_of(loaded)
    for chunk in (1, 7, 32, 69):
        assert_same_bits(logits_of(loaded, chunk), want, f"chunks of {chunk}")


def test_answers_about_notes_stay_right():
    """The shipped model, packed to 4 bits: what stands in its prompt it still finds, letter for letter."""
    checkpoint = load_checkpoint("default", dtype="bfloat16")
    llm, encode = load_solution("ref"), checkpoint.tokenizer.encode
    packed = {
        name: pack(w, bits=4, group_size=64) if w.ndim == 2 else w for name, w in checkpoint.weights.items()
    }
    model = llm.build_model(replace(checkpoint, weights=with_activation_bits(packed, 8)))
    questions = recall_questions(1, 12, 200, encode)
    prompts = [Prompt(render_prompt(question.user), SamplingParams(max_tokens=40)) for question in questions]
    done = llm.batch_generate(model, checkpoint.tokenizer, prompts, max_seq_len=400)
    assert [each.text for each in done] == [question.answer for question in questions]


def test_all_matrices_of_4_bits_and_no_others():
    weights = load(f"{MODEL},tied=0", "ref", "cpu", activation_bits=8).checkpoint.weights
    packed = [w for w in weights.values() if isinstance(w, QuantizedWeights)]
    assert len(packed) > 10 and all(w.activation_bits == 8 for w in packed)
    plain = load(MODEL, "ref", "cpu").checkpoint.weights.values()
    assert all(w.activation_bits is None for w in plain if isinstance(w, QuantizedWeights))


@pytest.mark.parametrize("model", ["default", "random:qwen3-shrunk,bits=8"])
def test_a_model_without_them_is_refused(model):
    with pytest.raises(UserError, match=f"{model} has no weights of 4 bits: leave out --activation-bits"):
        load(model, "ref", "cpu", activation_bits=8)


@pytest.mark.parametrize("solution", ["ref", "mlx-lm"])
def test_it_goes_with_our_kernels(monkeypatch, solution):
    if solution == "ref":
        monkeypatch.setenv(native.VARIABLE, "off")
    with pytest.raises(UserError, match="--activation-bits needs our C\\+\\+ kernels on a CPU: leave it out"):
        load(MODEL, solution, "cpu", activation_bits=8)
