"""What a server has sent can be sent back, whatever the model's template: no word is lost."""

import random
from typing import Any

import pytest
from tests.helpers.histories import TOOL, history

from tiny_llm_lab.runtime.models.text.template_facts import LEVELS

# Those of models that call tools.
NAMES = ("llama3_1", "qwen2_5", "qwen3", "qwen3_5", "qwen3_6", "qwen3_8", "qwen3_coder", "qwen3_vl")
ONE_CALL = ("llama3_1",)  # a result follows its call


def bodies(said):
    level, switch = said.rng.choice(("none", *LEVELS)), {"preserve_thinking": said.rng.random() < 0.5}
    function, tool = {"type": "function"}, {"name": "get", "input_schema": TOOL["parameters"]}
    chat: dict[str, Any] = {"messages": said.chat, "tools": [function | {"function": TOOL}]}
    yield "/chat/completions", chat | {"reasoning_effort": level, "chat_template_kwargs": switch}
    claude: dict[str, Any] = {"messages": said.messages, "tools": [tool], "max_tokens": 9}
    thinks = {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}
    yield "/messages", claude | thinks | ({"system": said.before} if said.before else {})
    items: dict[str, Any] = {"input": said.items, "instructions": said.before, "tools": [function | TOOL]}
    yield "/responses", items | {"reasoning": {"effort": level}, "chat_template_kwargs": switch}


def check(name, ask, seeds):
    keeps_order = name not in ONE_CALL
    for seed in seeds:
        said = history(random.Random(seed))
        for path, body in bodies(said):
            status, prompt = ask(path, **body)
            assert status == 200, (seed, path, prompt)
            places = [prompt.find(word) for word in said.words]
            assert [prompt.count(word) for word in said.words] == [1] * len(said.words), (seed, path, prompt)
            assert places == sorted(places) or not keeps_order, (seed, path, prompt)
            assert all(prompt.count(word) <= 1 for word in said.thoughts)
            keeps = name == "qwen3_6" and body.get("chat_template_kwargs", {}).get("preserve_thinking")
            assert not keeps or all(map(prompt.count, said.thoughts)), (seed, path, prompt)


@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_a_history_is_lost(name, ask_with):
    check(name, ask_with(name), range(8))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_many_histories_is_lost(name, ask_with):
    check(name, ask_with(name), range(8, 300))
