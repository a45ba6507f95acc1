"""What is known of a chat template, and what it costs to find out."""

from dataclasses import replace
from pathlib import Path

import jinja2
import pytest

from tiny_llm_lab.runtime.models.text.chat_form import conversation_for
from tiny_llm_lab.runtime.models.text.template_facts import LEVELS, TemplateFacts, TooLongError, look_at

TEMPLATES = Path(__file__).parents[2] / "helpers" / "templates"
HI = {"role": "user", "content": "hi"}
TOOLS = TemplateFacts(has_tools=True)
OBJECTS = replace(TOOLS, arguments="object")
SWITCH, EFFORT = "enable_thinking", "reasoning_effort"
KNOWN = {
    "qwen2_5": TOOLS,
    "qwen3": replace(TOOLS, variables=frozenset({SWITCH})),
    "qwen3_coder": OBJECTS,
    "qwen3_5": replace(
        OBJECTS, system="first", needs_user=True, variables=frozenset({SWITCH, "preserve_thinking"})
    ),
    "qwen3_8": replace(
        OBJECTS,
        system="first",
        needs_user=True,
        variables=frozenset({SWITCH, "preserve_thinking", EFFORT}),
        efforts=("low", "medium", "xhigh"),
    ),
    "qwen3_vl": replace(TOOLS, in_parts=frozenset({"user", "tool"}), system="first"),
    "llama3_1": replace(TOOLS, has_many_calls=False, has_words_with_calls=False),
    "parts_only": TemplateFacts(in_parts=frozenset({"user", "system", "assistant"})),
    "no_system": TemplateFacts(system="nowhere", must_alternate=True),
    "silent": TemplateFacts(complaint="it does not show what a user says"),
}


def facts_of(source):
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)

    def refuse(reason):
        raise jinja2.TemplateError(reason)

    def render(turns, **given):
        return environment.from_string(source).render(messages=turns, raise_exception=refuse, **given)

    return look_at(render, [source])


@pytest.mark.parametrize("name", KNOWN)
def test_what_a_template_takes(name):
    facts = facts_of((TEMPLATES / f"{name}.jinja").read_text())
    assert facts == KNOWN[name]
    assert (facts.complaint or f"arguments: {facts.arguments}") in facts.line()


def test_a_template_of_tags_that_only_transformers_knows_says_its_variables():
    source = "{% generation %}{{ enable_thinking }}{% endgeneration %}"
    facts = look_at(lambda turns, **_: str(turns), [source])
    assert facts.variables == {SWITCH}


def test_a_template_that_does_not_end_is_tried_once():
    tried = []

    def hang(turns, **_):
        tried.append(turns)
        raise TooLongError

    with pytest.raises(TooLongError):
        look_at(hang, [""])
    assert len(tried) == 1


@pytest.mark.parametrize(
    ("taken", "nearest"),
    [
        (("low", "medium", "xhigh"), (None, "low", "low", "medium", "xhigh", "xhigh", "xhigh")),
        (("none", "high"), ("none", *["high"] * 6)),
        ((), (None,) * 7),
        (LEVELS, LEVELS),
    ],
)
def test_the_nearest_effort(taken, nearest):
    facts = TemplateFacts(variables=frozenset({SWITCH, EFFORT}), efforts=taken)
    assert tuple(facts.effort(level) for level in LEVELS) == nearest


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_coder"])
def test_what_a_template_takes_stays_as_it_is(name):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    result = {"role": "tool", "tool_call_id": "a", "content": "r"}
    system = {"role": "system", "content": "s"}
    said = {"role": "assistant", "content": "x", "tool_calls": [call, call]}
    turns = [system, system, HI, said, result, result, system, HI]
    assert conversation_for(KNOWN[name], turns) == turns


def test_a_result_follows_its_own_call():
    calls = [{"id": name, "function": {"name": "f", "arguments": {}}} for name in "abc"]
    said = {"role": "assistant", "content": "x", "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("c", "b", "zz")]
    turns = conversation_for(KNOWN["llama3_1"], [HI, said, *results])
    told = [each["tool_calls"][0]["id"] if "tool_calls" in each else each["content"] for each in turns]
    assert told == ["hi", "x", "a", "c", "b", "b", "c", "zz"]
