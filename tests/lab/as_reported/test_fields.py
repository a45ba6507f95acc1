"""What a request asks for is obeyed, or refused by name, on every route."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel
from tests.helpers.real_server import client_of
from tests.helpers.scripted_client import scripted_client
from tests.lab.as_reported.report import Report

import tiny_llm_lab.runtime.models
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server.routes.completions import CompletionRequest
from tiny_llm_lab.serving.server.routes.tokenize import DetokenizeRequest, TokenizeRequest
from tiny_llm_lab.serving.server.schemas.chat import ChatRequest
from tiny_llm_lab.serving.server.schemas.messages import CountRequest, MessagesRequest
from tiny_llm_lab.serving.server.schemas.responses import ResponsesRequest
from tiny_llm_lab.serving.server.schemas.sampling import IGNORED, REFUSED, asks

TALK: Final = [{"role": "user", "content": "hi"}]
BODIES: Final[Mapping[str, tuple[type[BaseModel], Mapping[str, Any]]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": TALK, "max_tokens": 2}),
    "/v1/completions": (CompletionRequest, {"prompt": "hi", "max_tokens": 2}),
    "/v1/responses": (ResponsesRequest, {"input": "hi", "max_output_tokens": 2}),
    "/v1/messages": (MessagesRequest, {"messages": TALK, "max_tokens": 2}),
    "/v1/messages/count_tokens": (CountRequest, {"messages": TALK}),
    "/tokenize": (TokenizeRequest, {"messages": TALK}),
    "/detokenize": (DetokenizeRequest, {"tokens": [65]}),
}
ANSWERING: Final = [
    schema for path, (schema, _) in BODIES.items() if path.startswith("/v1") and path[-7:] != "_tokens"
]
SOMETHING: Final = ("x", 2, [{"type": "x"}], {"a": 1})  # values that ask for something, whatever is meant


def test_a_temperature_as_reported(on_shipped_model):
    body = {"prompt": "Once upon a time", "max_tokens": 3, "temperature": 1e-8}
    right = {"choices.0.finish_reason": "length"}
    on_shipped_model(Report("ragas#938", "a temperature of 1e-8 is refused", "/v1/completions", body, right))


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with scripted_client(tmp_path_factory.mktemp("fields") / "qwen", "hello") as server:
        yield server.site


@pytest.mark.parametrize("schema", ANSWERING)
def test_every_field_of_a_route_is_known_to_the_others(schema):
    for other in ANSWERING:
        unknown = schema.model_fields.keys() - other.model_fields.keys() - IGNORED.keys() - REFUSED.keys()
        assert not unknown, other


def test_what_is_harmless_is_not_refused():
    harmless = {"n": 1, "modalities": ["text"], "tool_choice": "auto"}
    harmless |= {"skip_special_tokens": True, "typical_p": 1.0}
    assert not any(asks(name, value) for name, value in harmless.items())
    nothing: tuple[object, ...] = (None, False, 0, "", [], {})
    assert not any(asks(name, value) for name in REFUSED for value in nothing)


@pytest.mark.parametrize("path", BODIES)
def test_every_field_is_taken_ignored_or_refused(client, path):
    schema, body = BODIES[path]
    plain = client.post(path, json=body)
    assert plain.status_code == 200, plain.text
    taken = {*schema.model_fields, *getattr(schema, "others", ())}
    for number, name in enumerate(sorted({*IGNORED, *REFUSED} - taken)):
        answer = client.post(path, json={**body, name: SOMETHING[number % len(SOMETHING)]})
        if name in REFUSED:
            said = answer.json()["error"]["message"]
            assert answer.status_code == 400 and said.startswith(f"{name} is not supported: "), said
            assert said.count(" ") > 4, "it names the cure"
        else:
            assert answer.status_code == 200, (name, answer.text)


THINKING: Final = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n"
)
ONCE: Final = [{"role": "user", "content": "Once upon a time there was a"}]


@pytest.fixture(scope="module")
def thinking(kernels_on, tmp_path_factory):
    """The shipped model, whose prompts end with <think>: it repeats that tag for ever."""
    folder = tmp_path_factory.mktemp("thinking") / "t"
    shutil.copytree(Path(tiny_llm_lab.runtime.models.__file__).parent / "default", folder)
    (folder / "chat_template.jinja").write_text(THINKING)
    with client_of(ModelSettings(str(folder))) as client:
        yield client


STOPS = [
    ("/v1/chat/completions", {"stop": ["nk>h", "i", "h"]}),
    ("/v1/messages", {"stop_sequences": ["nk>h"], "thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("/v1/responses", {"stop": "nk>h"}),
]


@pytest.mark.parametrize(("path", "stops"), STOPS)
def test_stop_strings_do_not_count_in_thoughts(thinking, path, stops):
    """vllm#52393, #53066, #14170: answers of thinking models end in their thoughts."""
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {"temperature": 0, limit: 40, "input" if path == "/v1/responses" else "messages": ONCE}
    plain, stopped = (thinking.post(path, json=each).json() for each in (body, {**body, **stops}))
    for usage in (plain["usage"], stopped["usage"]):
        assert usage.get("output_tokens", usage.get("completion_tokens")) == 40
    assert "hink>hink>" in str(stopped)
