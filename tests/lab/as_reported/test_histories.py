"""What a server has sent can be sent back, whatever the model's template: no word is lost."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.helpers.histories import TOOL, History, history
from tests.lab.as_reported.conftest import Ask

# Those of models that call tools.
NAMES = ("llama3_1", "qwen2_5", "qwen3", "qwen3_5", "qwen3_8", "qwen3_coder", "qwen3_vl")
ONE_CALL = ("llama3_1",)  # a result follows its call


def bodies(said: History) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "/chat/completions", {"messages": said.chat, "tools": [{"type": "function", "function": TOOL}]}
    tool = {"name": "get", "input_schema": TOOL["parameters"]}
    yield "/messages", {"messages": said.messages, "tools": [tool], "max_tokens": 9}
    yield "/responses", {"input": said.items, "tools": [{"type": "function", **TOOL}]}


def check(ask: Ask, seeds: range, keeps_order: bool) -> None:
    for seed in seeds:
        said = history(random.Random(seed))
        for path, body in bodies(said):
            status, prompt = ask(path, **body)
            assert status == 200, (seed, path, prompt)
            places = [prompt.find(word) for word in said.words]
            assert [prompt.count(word) for word in said.words] == [1] * len(said.words), (seed, path, prompt)
            assert places == sorted(places) or not keeps_order, (seed, path, prompt)
            assert all(prompt.count(word) <= 1 for word in said.thoughts)


@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_a_history_is_lost(name: str, ask_with: Callable[[str], Ask]) -> None:
    check(ask_with(name), range(8), name not in ONE_CALL)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_many_histories_is_lost(name: str, ask_with: Callable[[str], Ask]) -> None:
    check(ask_with(name), range(8, 300), name not in ONE_CALL)
