"""What a server has sent can be sent back, whatever the model's template: no word is lost."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.checkpoints import edit_json
from tests.helpers.histories import TOOL, History, history
from tests.helpers.scripted_engine import ScriptedEngine, scripted_server
from tests.lab.as_reported.conftest import TEMPLATES

from tiny_llm_lab.runtime.models import load_checkpoint

NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
ONE_CALL = ("llama3_1",)  # a result follows its call


@contextmanager
def prompts_of(folder: Path, template: str) -> Iterator[Callable[..., tuple[int, str]]]:
    """Posts a body; the status, and the prompt or the error."""
    qwen_like_folder(folder)
    edit_json(folder / "tokenizer_config.json", chat_template=(TEMPLATES / f"{template}.jinja").read_text())
    engine, tokenizer = ScriptedEngine(), load_checkpoint(folder).tokenizer
    engine.script = "ok"
    with scripted_server(folder, engine) as url, httpx2.Client(base_url=url, timeout=60) as client:

        def ask(path: str, **body: Any) -> tuple[int, str]:
            answer = client.post(path, json=body)
            is_right = answer.status_code == 200
            return answer.status_code, tokenizer.decode(engine.prompts[-1]) if is_right else answer.text

        yield ask


def bodies(said: History) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "/chat/completions", {"messages": said.chat, "tools": [{"type": "function", "function": TOOL}]}
    tool = {"name": "get", "input_schema": TOOL["parameters"]}
    yield "/messages", {"messages": said.messages, "tools": [tool], "max_tokens": 9}
    yield "/responses", {"input": said.items, "tools": [{"type": "function", **TOOL}]}


def check(ask: Callable[..., tuple[int, str]], seeds: range, keeps_order: bool) -> None:
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
def test_no_word_of_a_history_is_lost(name: str, tmp_path: Path) -> None:
    with prompts_of(tmp_path / "qwen", name) as ask:
        check(ask, range(8), name not in ONE_CALL)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_many_histories_is_lost(name: str, tmp_path: Path) -> None:
    with prompts_of(tmp_path / "qwen", name) as ask:
        check(ask, range(8, 300), name not in ONE_CALL)
