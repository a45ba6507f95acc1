"""Day 3.6: prompts that are none."""

from dataclasses import replace

import pytest
from tests.helpers.serving import LONG, four_prompts, idx_of, make_engine

from tiny_llm_lab.types import Prompt, SchedulerConfig, UserError

# The task of each test that names no other.
pytestmark = pytest.mark.task("3.6.6")

BAD = {
    "None": (None, "text or a list of integer"),
    "surrogate": ("a\ud800b", "not valid Unicode"),
    "floats": ([1.5, 2.0], "integer"),
    "strings": (["a", "b"], "integer"),
    "empty": ("", "empty"),
    "no tokens": ([], "empty"),
    "negative": ([-1], "vocabulary"),
    "unknown": ([258], "vocabulary"),
    "too long": ([97] * 51, "51 tokens but max_model_len is 50"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_prompt_is_an_error_of_its_own(llm, model, wanted, name):
    content, reason = BAD[name]
    events = []
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=50))
    good = four_prompts()
    done = engine.generate([good[0], Prompt(content), good[1]], events.append)
    assert [each.finish_reason for each in done] == ["length", "error", "length"]
    assert reason in done[1].error
    assert "\n" not in done[1].error
    assert [done[0].token_ids, done[2].token_ids] == wanted[:2]
    assert [event.completion for event in events if idx_of(event) == 1] == [done[1]]


@pytest.mark.task("3.6.5")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_prompt_cannot_be_added(llm, model, name):
    content, reason = BAD[name]
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=50))
    with pytest.raises(UserError, match=reason):
        engine.add("bad", content)
    assert not engine.has_requests


def test_an_error_completion_tells_the_number_of_tokens(llm, model):
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=50))
    done = engine.generate(["a" * 51, "", [97] * 60])
    assert [each.num_prompt_tokens for each in done] == [51, 0, 60]


def test_refused_prompts_cost_no_step(llm, model):
    def plans(prompts):
        told = []
        engine = make_engine(llm, model, on_step=lambda plan, _: told.append(plan.num_scheduled_tokens))
        engine.generate(prompts, lambda event: None)
        return [[*each.values()] for each in told]

    good, bad = four_prompts(), Prompt("")
    assert plans([bad, good[0], bad, bad, *good[1:], bad]) == plans(good)


def test_refused_prompts_are_reported_once_on_stderr(llm, model, capsys):
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=50))
    engine.generate([[97] * 51, Prompt([97], replace(LONG, max_tokens=1)), ""])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("2 of 3 prompts were refused: the prompt has 51 tokens")
    engine.generate([[97] * 51], lambda event: None)
    engine.generate([Prompt([97], replace(LONG, max_tokens=1))])
    assert capsys.readouterr().err == ""
