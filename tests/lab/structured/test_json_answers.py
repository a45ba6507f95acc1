"""The shipped model, which has never seen JSON, answers in JSON: for every seed, with drafts and without."""

import json

import pytest

from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.types import Prompt, SchedulerConfig, StructuredOutputs, UserError
from tiny_llm_ref import NgramProposer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        "is_open": {"type": "boolean"},
    },
    "required": ["name", "size", "tags", "is_open"],
    "additionalProperties": False,
}
FORM = StructuredOutputs(json=SCHEMA)
# Temperatures at which the model has its say, and at which every token is as likely as any other.
PROMPTS = [
    Prompt(
        f"Object {seed}:",
        SamplingParams(
            temperature=(0, 1, 1000)[seed % 3], seed=seed, max_tokens=120, structured_outputs=FORM
        ),
    )
    for seed in range(18)
]


@pytest.fixture(scope="module")
def answers(kernels_on):
    with LLM() as llm:
        return llm.generate(PROMPTS)


def test_every_answer_parses(answers):
    for each in answers:
        assert each.finish_reason == "stop"
        found = json.loads(each.text)
        assert list(found) == list(SCHEMA["properties"])
        assert 0 <= found["size"] <= 99
        assert len(found["name"]) <= 8
        assert isinstance(found["is_open"], bool)
    assert len({each.text for each in answers}) > 9


def test_the_same_answers_with_drafts_and_in_chunks(answers):
    config = SchedulerConfig(max_num_batched_tokens=40, max_num_seqs=16, max_model_len=400)
    with LLM(config=config, proposer=NgramProposer(3, 1, 4), async_scheduling=True) as llm:
        found = llm.generate(PROMPTS)
        assert llm.engine.core.spec_stats.num_accepted_tokens > 50
    assert [each.token_ids for each in found] == [each.token_ids for each in answers]


def test_a_bad_schema_is_an_error_before_anything_is_served():
    with LLM() as llm:
        bad = SamplingParams(structured_outputs=StructuredOutputs(json={"type": "foo"}))
        with pytest.raises(UserError, match="foo"):
            llm.generate("Hello", bad)
        assert not llm.engine.has_requests
