"""Forms that cost too much end their trial, and nothing else."""

import contextlib
import os
import threading
from concurrent.futures import Future

import pytest
from tests.helpers.processes import wait_for

from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.runtime.structured.trials import Trials
from tiny_llm_lab.serving.async_engine.loop import built_from
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.types import StructuredOutputs, UserError

COSTLY = {"type": "integer", "multipleOf": 1000003}
NESTED = {
    "type": "array",
    "items": {"$ref": "#/$defs/a"},
    "$defs": {"a": {"type": "integer", "multipleOf": 999983}},
}
AMBIGUOUS = (
    "start: "
    + " ".join(f"r{i}" for i in range(260))
    + "".join(f'\nr{i}: "a"? | "b"? | r{(i + 1) % 260}' for i in range(260))
)


@pytest.fixture(scope="module")
def grammars():
    found = load_checkpoint("default")
    return Grammars(found.tokenizer, found.config.vocab_size, timeout_s=0.3)


TOO_COSTLY = [
    ({"json": {"type": "integer", "multipleOf": 1000003}}, "0.3 s to compile.*multipleOf"),
    ({"json": NESTED}, "0.3 s to compile"),
    ({"json": {"type": "integer", "multipleOf": 42949673, "maximum": 10**15}}, "0.3 s|memory"),
    ({"regex": "(((a{999}){999}){999})"}, "0.3 s|memory"),
    ({"grammar": 'start: start "a"'}, "no text can match"),
    ({"grammar": 'start: a\na: b "x"\nb: a "y"'}, "no text can match"),
    ({"grammar": AMBIGUOUS}, "its tokens cost too much"),
    ({"regex": "[^\\s\\S]"}, "no text can match"),
    ({"json": {"$ref": "#"}}, "no text can match"),
]


@pytest.mark.parametrize(("form", "complaint"), TOO_COSTLY, ids=lambda each: str(each)[:40])
def test_a_form_that_costs_too_much_is_refused_and_says_why(grammars, form, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        grammars.processor(StructuredOutputs(**form))
    assert "\n" not in str(caught.value)
    assert grammars.processor(StructuredOutputs(regex="a|b")).error is None


def begun(left):
    """Grammars with a trial that does not end, its thread and what it says in the end."""
    found = load_checkpoint("default")
    grammars, caught = Grammars(found.tokenizer, found.config.vocab_size, timeout_s=3600), list[str]()

    def ask():
        try:
            grammars.require(StructuredOutputs(json=COSTLY), left)
        except UserError as error:
            caught.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    grammars.processor(StructuredOutputs(regex="c"))  # another form does not wait for it
    return grammars, thread, caught


@pytest.mark.parametrize("ending", ["stopped", "owner killed"])
def test_no_process_stays_behind(ending):
    left = Future()
    grammars, thread, _ = begun(left)
    process = grammars._trials.process
    grammars._trials._stop() if ending == "stopped" else grammars._trials._control.close()
    process.wait()
    with pytest.raises(ProcessLookupError):
        wait_for(lambda: os.killpg(process.pid, 0), "the end of its group")
    left.set_result(None)
    thread.join(60)


def test_an_engine_has_built_what_forms_need(monkeypatch, kernels_on):
    engine = EngineSettings(num_blocks=8)
    settings = ModelSettings("random:qwen3-shrunk,bits=4", engine=engine, threads=1, activation_bits=8)
    built = built_from(settings, lambda *_: None)
    assert built.facts.activation_bits == 8
    monkeypatch.setattr("tiny_llm_lab.runtime.structured.grammars.LLTokenizer", None)
    assert built.forms.compile(StructuredOutputs(regex="a")).error is None
    built.engine.release()


def test_a_client_that_leaves_ends_its_trial():
    left = Future()
    _, thread, caught = begun(left)
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
    assert 0 < grammars.require(StructuredOutputs(regex="f")) < 2, "CPU time, which has a limit of 0.3 s"


TRIALS = [((b"", b'{"cpu_s": 0.5}'), 0.5), ((b"", b""), "is nested too deeply")]


@pytest.mark.parametrize(("said", "outcome"), TRIALS)
def test_a_trial_that_says_nothing_is_tried_once_more(monkeypatch, said, outcome):
    trials, answers = Trials(dict, timeout_s=2), list(said)
    monkeypatch.setattr(trials, "_asked", lambda *_: answers.pop(0))
    with contextlib.nullcontext() if outcome == 0.5 else pytest.raises(UserError, match=outcome):
        assert trials.require("a") == trials.require("a") == outcome, "what has passed is not asked again"
    assert not answers
