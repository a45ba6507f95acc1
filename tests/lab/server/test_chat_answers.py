"""Chats through a model that says what it is told: thoughts, calls, history, refusals."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.helpers.scripted_client import CALL, HI, TOOL, scripted_client, streamed

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser
from tiny_llm_lab.serving.server.chat.choice import ChatChoice
from tiny_llm_lab.serving.server.chat.conversation import with_tools_as_text
from tiny_llm_lab.serving.server.schemas.tools import Function, call_form
from tiny_llm_lab.serving.server.settings import ChatSettings
from tiny_llm_lab.types import Completion, EngineOutput, Timing

HUGE = {"type": "function", "function": {"name": "f", "parameters": {"enum": ["x" * 530_000]}}}


@pytest.mark.parametrize("stride", [1, 7, 1000])
def test_a_stream_of_thoughts_words_and_calls(server, stride):
    server.engine.script = f"<think>\nHm.\n</think>\n\nOne <b>moment.\n{CALL}\n{CALL}"
    server.engine.stride = stride
    found = streamed(server.chat(model="scripted", messages=HI, tools=[TOOL], stream=True))
    assert (found.content, found.reasoning, found.reason) == ("One <b>moment.\n", "Hm.", "tool_calls")
    assert found.calls == [["get", '{"city": "Köln"}']] * 2


def test_what_is_off_is_content(tmp_path):
    script, path = f"<think>Hm.</think>{CALL}", "/chat/completions"
    with scripted_client(tmp_path / "qwen", script, chat=ChatSettings("off", "off")) as off:
        (choice,) = off.refused(path, messages=HI).json()["choices"]
        assert choice["message"] == {"role": "assistant", "content": script, "refusal": None}
        refused = off.refused(path, messages=HI, tools=[TOOL])
        assert refused.status_code == 400 and "tool_choice auto is off" in refused.text
        off.engine.script = '{"name": "get", "arguments": {}}'
        must = off.refused(path, messages=HI, tools=[TOOL], tool_choice="required")
        (choice,) = must.json()["choices"]
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "get"


def test_a_template_without_tools_loses_nothing():
    call = {"id": "1", "type": "function", "function": {"name": "get", "arguments": {"city": "Köln"}}}
    messages = [
        {"role": "system", "content": "Be kind"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    tool = {**TOOL, "function": {**TOOL["function"], "description": "Das Wetter für 北京"}}
    system, answer, returned = with_tools_as_text(messages, [tool])
    assert system["content"].startswith("Be kind\n") and '{"name": "get", "parameters"' in system["content"]
    assert "Das Wetter für 北京" in system["content"], "no character as a number"
    assert answer["content"] == '<tool_call>\n{"name": "get", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert returned == {"role": "user", "content": "<tool_response>\nrain\n</tool_response>"}
    roles = [each["role"] for each in with_tools_as_text(messages[1:], [TOOL])]
    assert roles == ["system", "assistant", "user"]


TOO_LARGE = [
    ("tools", {"messages": HI, "tools": [HUGE], "tool_choice": "required"}),
    ("messages", {"messages": [{"role": "user", "content": "x" * 90_000}]}),
]


@pytest.mark.parametrize(("param", "body"), TOO_LARGE)
def test_what_is_too_large_is_never_encoded(server, param, body):
    answer = server.refused("/chat/completions", **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert "maximum" not in answer.text or "at least" in answer.text


def test_a_call_that_must_come_has_a_form_without_descriptions():
    text = {"type": "string", "description": "x" * 3000, "examples": ["x"], "default": "x"}
    kept = {"title": {"enum": [{"title": 1}]}, "properties": {"properties": {"default": {"const": 1}}}}
    parameters = {"type": "object", "title": "T", "properties": {"description": text, **kept}}
    form = call_form([Function(name=f"f{i}", parameters=parameters) for i in range(30)])
    found = json.loads(str(form.json))["anyOf"][7]["properties"]["arguments"]
    properties = {"description": {"type": "string"}, **kept}
    assert found == {"$id": "tool-7", "type": "object", "properties": properties}


def test_a_form_is_compiled_once_for_all_answers(server, monkeypatch):
    compiled, compile_form = [], Grammars.compile
    count = lambda *args: compiled.append(1) or compile_form(*args)  # noqa: E731
    monkeypatch.setattr(Grammars, "compile", count)
    server.chat(model="scripted", messages=HI, n=4, response_format={"type": "json_object"})
    assert len(compiled) == 1
    server.refused("/completions", prompt=["a", "b"], n=3, guided_regex="a")
    assert len(compiled) == 2


@pytest.mark.parametrize("name", ["apply_chat_template", "encode"])
def test_what_hangs_keeps_only_its_own_kind_waiting(server, monkeypatch, name):
    goes_on, begun = threading.Event(), threading.Semaphore(0)
    compute = getattr(CheckpointTokenizer, name)
    server.engine.script = "ok"

    def hanging(*args, **options):
        begun.release()
        goes_on.wait()
        return compute(*args, **options)

    monkeypatch.setattr(CheckpointTokenizer, name, hanging)
    with ThreadPoolExecutor(50) as pool:
        chats = [pool.submit(server.refused, "/chat/completions", messages=HI) for _ in range(50)]
        try:
            begun.acquire()
            begun.acquire()
            asked = {"prompt": [5, 6], "guided_regex": "a"}  # the grammar needs a thread as well
            assert server.refused("/completions", **asked).status_code == 200
            assert server.refused("/completions", prompt="x" * 90_000).status_code == 400, "never encoded"
        finally:
            goes_on.set()
        assert {each.result().status_code for each in chats} == {200}


def test_a_step_without_text_makes_no_event():
    choice = ChatChoice(None, AnswerParser(None, None))
    made = [choice.chunk(0, EngineOutput("r", (7,), text)) for text in ("", "", "a", "")]
    assert [each is None for each in made] == [False, True, False, True], "the first one says the role"
    choice.keep(EngineOutput("r", (), "", Completion(0, 1, (), "", "stop", Timing(0.0))))
    assert choice.whole(0)["message"]["content"] == "", "an answer without a word is no call"
