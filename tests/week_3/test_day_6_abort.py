"""Day 3.6: requests that are added and aborted while `Engine.generate` runs."""

import pytest
from tests.helpers.serving import make_engine
from tests.helpers.toy import toy_model

from tiny_llm_lab.types import DoneEvent, Prompt, SamplingParams, TokenEvent


@pytest.mark.task("3.6.6")
@pytest.mark.parametrize("kind", [TokenEvent, DoneEvent], ids=["beside a prompt", "after the last prompt"])
def test_an_added_request_that_is_aborted_has_an_end(llm, kind):
    engine, events = make_engine(llm, toy_model(llm)), []
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)

    def on_event(event):
        events.append(event)
        if isinstance(event, kind) and sum(isinstance(each, kind) for each in events) == 1:
            engine.add("added", [98], sampling)
            engine.add("kept", [99], sampling)
            assert engine.abort("added")

    engine.generate([Prompt([97], sampling)], on_event)
    ends = [event.completion for event in events if isinstance(event, DoneEvent)]
    assert sorted(end.finish_reason for end in ends) == ["abort", "length", "length"], "each ends once"
    assert len({end.prompt_idx for end in ends}) == 3, "each has a number of its own"
