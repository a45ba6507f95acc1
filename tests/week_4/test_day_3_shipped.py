"""Day 4.3: the shipped hybrid computes what transformers computes, and finds facts in notes that are cut."""

import mlx.core as mx
import pytest
from tests.helpers.golden import golden
from tests.helpers.tolerance import F32_MODEL, assert_close
from tests.test_default_model import UNCHUNKED, Shipped

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import SamplingParams, Wanted

NAME = "default-hybrid"

pytestmark = pytest.mark.task("4.3.6")


@pytest.fixture(scope="module")
def shipped(llm):
    checkpoint = load_checkpoint(NAME)
    return Shipped(llm, llm.build_model(checkpoint), checkpoint.tokenizer)


def test_it_computes_what_transformers_computes(shipped):
    recorded = golden(NAME, "make_transformers_golden")
    prompt = recorded["prompt"].tolist()
    logits = shipped.model(mx.array([prompt]), wanted=Wanted(last=len(recorded["logits"])))
    assert_close(logits[0], recorded["logits"], F32_MODEL, legend="[L, V]", what=f"{NAME}'s logits")
    sampling = SamplingParams(max_tokens=len(recorded["greedy"]), ignore_eos=True)
    (done,) = shipped.llm.batch_generate(shipped.model, shipped.tokenizer, [prompt], sampling=sampling)
    assert done.token_ids == tuple(recorded["greedy"].tolist())


@pytest.fixture(scope="module")
def long_notes(shipped):
    """Six questions about notes of 256 tokens, and their answers without cuts."""
    questions = shipped.questions(seed=2026, count=6, context_tokens=256)
    return questions, shipped.answers(questions, prefill_step=UNCHUNKED, batch_size=6)


@pytest.mark.long
def test_it_finds_facts_in_long_notes_however_they_are_cut(shipped, long_notes):
    """The model's card says how often it is right."""
    questions, whole = long_notes
    texts = [completion.text for completion in whole]
    right = sum(text == question.answer for text, question in zip(texts, questions, strict=True))
    assert right >= 5, texts
    cut = shipped.answers(questions[:3], prefill_step=32, batch_size=3)
    assert [each.token_ids for each in cut] == [each.token_ids for each in whole[:3]]
