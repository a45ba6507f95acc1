"""Forms that cost too much end their trial, and nothing else."""

import threading
from concurrent.futures import Future

import pytest

from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.types import StructuredOutputs, UserError

COSTLY = {"type": "integer", "multipleOf": 1000003}
NESTED = {
    "type": "array",
    "items": {"$ref": "#/$defs/a"},
    "$defs": {"a": {"type": "integer", "multipleOf": 999983}},
}


@pytest.fixture(scope="module")
def grammars():
    found = load_checkpoint("default")
    return Grammars(found.tokenizer, found.config.vocab_size, timeout_s=0.3)


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        ({"json": {"type": "integer", "multipleOf": 1000003}}, "0.3 s to compile.*multipleOf"),
        ({"json": NESTED}, "0.3 s to compile"),
        ({"json": {"type": "integer", "multipleOf": 42949673, "maximum": 10**15}}, "0.3 s|memory"),
        ({"regex": "(((a{999}){999}){999})"}, "0.3 s|memory"),
        ({"grammar": 'start: start "a"'}, "no text can match"),
        ({"grammar": 'start: a\na: b "x"\nb: a "y"'}, "no text can match"),
        ({"regex": "[^\\s\\S]"}, "no text can match"),
        ({"json": {"$ref": "#"}}, "no text can match"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_form_that_costs_too_much_is_refused_and_says_why(grammars, form, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        grammars.processor(StructuredOutputs(**form))
    assert "\n" not in str(caught.value)
    assert grammars.processor(StructuredOutputs(regex="a|b")).error is None


def test_a_client_that_leaves_ends_its_trial():
    found = load_checkpoint("default")
    grammars, left = Grammars(found.tokenizer, found.config.vocab_size, timeout_s=3600), Future()
    caught = []

    def ask():
        try:
            grammars.require(StructuredOutputs(json=COSTLY), left)
        except UserError as error:
            caught.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    grammars.processor(StructuredOutputs(regex="c"))  # another form does not wait for it
    left.set_result(None)
    thread.join(60)
    assert "left" in caught[0]


def test_a_process_that_was_killed_is_started_again(grammars):
    grammars.processor(StructuredOutputs(regex="d"))
    first = grammars._trials.process
    first.kill()
    first.wait()
    grammars.processor(StructuredOutputs(regex="e"))
    assert grammars._trials.process is not first
