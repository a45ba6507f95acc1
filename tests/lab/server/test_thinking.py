"""Every way to limit thoughts or to turn them off, on every route; and a model that obeys."""

import json
from itertools import product

import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.real_server import client_of
from tests.helpers.scripted_client import HI, TOOL

from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server.schemas.chat import ChatRequest
from tiny_llm_lab.serving.server.schemas.messages import CountRequest
from tiny_llm_lab.serving.server.settings import ChatSettings

CHAT, RESPONSES, MESSAGES = "/chat/completions", "/responses", "/messages"
ROUTES = {CHAT: {"messages": HI}, RESPONSES: {"input": "Hi"}, MESSAGES: {"messages": HI, "max_tokens": 3000}}
ON = {"thinking": {"type": "enabled"}}
BUDGETS = (
    *({name: 20} for name in ("thinking_budget", "thinking_token_budget", "reasoning_budget")),
    *({"thinking_budget_tokens": 20}, {"reasoning": {"max_tokens": 20}}),
    *(
        {"thinking": {"type": "enabled", "budget_tokens": 20}},
        {"chat_template_kwargs": {"thinking_budget": 20}},
    ),
    {"thinking_budget": 20, "reasoning_budget": -1, "thinking_token_budget": 99, "reasoning_effort": "low"},
)
OFF = (
    *({name: False} for name in ("enable_thinking", "think")),
    *({name: 0} for name in ("thinking_budget", "thinking_token_budget", "reasoning_budget")),
    *({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}, {"reasoning": {"max_tokens": 0}}),
    *({"reasoning": {"effort": "none"}}, {"reasoning": {"enabled": False}, "reasoning_effort": "high"}),
    {"thinking": {"type": "enabled", "budget_tokens": 0}},
    {"chat_template_kwargs": {"reasoning_effort": "none"}},
)
EFFORTS = {"minimal": 512, "low": 1024, "medium": None, "xhigh": None}  # 8,192 tokens do not fit
WRONG = (
    *(("thinking_budget", value) for value in (-2, 2**31)),
    *((f"{name}.{key}", 1.5) for name, key in (("thinking", "budget_tokens"), ("reasoning", "max_tokens"))),
    *(("chat_template_kwargs.thinking_budget", value) for value in ("20", True, 1.0)),
    *(("reasoning.enabled", "no"), ("think", "banana"), ("reasoning_effort", "banana")),
)


@pytest.mark.parametrize("path", ROUTES)
def test_all_spellings(server, path):
    def asked(**fields):
        assert server.refused(path, **ROUTES[path], **fields).status_code == 200, fields
        return server.engine.asked[-1]

    for fields in BUDGETS:
        assert asked(**fields).thinking_budget == 20, fields
    for effort, budget in EFFORTS.items():
        assert asked(**ON, reasoning_effort=effort).thinking_budget == budget
    assert asked(thinking_budget=-1, reasoning_effort="low").thinking_budget is None
    server.refused("/completions", prompt="Hi", thinking_token_budget=7)
    assert server.engine.asked[-1].thinking_budget == 7
    for fields in OFF:
        asked(**(ON | fields))
        assert server.prompt().endswith("assistant\n<think>\n\n</think>\n\n"), fields
    asked(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert "<think>" not in server.prompt(), "the template's own switch is the more exact one"
    for name, value in WRONG:
        outer, _, inner = name.partition(".")
        given = {inner: value, **({"type": "enabled"} if outer == "thinking" else {})} if inner else value
        answer = server.refused(path, **ROUTES[path], **{outer: given})
        assert answer.status_code == 400 and name in answer.text, (name, value)


def test_the_first_effort_that_is_said_counts():
    """Null is not said, and neither is a switch."""
    said = (None, "none", "max"), (None, "low"), (None, "medium"), (None, "high", True)
    for exact, own, other, think in product(*said):
        body = {"reasoning_effort": own, "reasoning": {"effort": other}, "think": think, "messages": HI}
        levels = [each for each in (exact, own, other, think) if each not in (None, True)]
        assert ChatRequest(**body).effort() == next(iter(levels[exact is not None :]), None), body
        assert CountRequest(**body, output_config={"effort": exact}).effort() == next(iter(levels), None)


@pytest.fixture(scope="module", params=["opened", "by the model", "qwen3_6"])
def thinker(request, kernels_on, tmp_path_factory):
    """A random model that never ends its thoughts by itself within its first 40 tokens."""
    folder = tmp_path_factory.mktemp("thinker") / "qwen"
    template = request.param if request.param == "qwen3_6" else ""
    qwen_like_folder(folder, "qwen3-shrunk,positions=2048", template)
    variables = json.dumps({"must_think": request.param == "opened"})
    chat = ChatSettings(reasoning_budget=16, default_chat_template_kwargs=variables)
    with client_of(ModelSettings(str(folder)), ("m",), chat) as client:
        client.base_url = f"{client.base_url}/v1"
        yield client


def test_a_form_and_a_call_begin_behind_a_thought_of_16_tokens(thinker):
    form = {"structured_outputs": {"regex": "(yes|no)[a-d]{3}"}, "temperature": 0}
    for path, body in ROUTES.items():
        answer = thinker.post(path, json=body | form | ON).json()
        usage = answer["usage"]
        for each in usage.get("completion_tokens_details"), usage.get("output_tokens_details"):
            assert each is None or each["reasoning_tokens"] == 16
        texts = [each.get("text") for each in answer.get("content", ())]
        texts += [part.get("text") for each in answer.get("output", ()) for part in each["content"]]
        texts += [each["message"]["content"] for each in answer.get("choices", ())]
        assert texts[-1][:-3] in ("yes", "no"), answer
    body = ROUTES[CHAT] | {"tools": [TOOL], "tool_choice": "required", "temperature": 0, "n": 2}
    body["max_tokens"] = 300
    for choice in thinker.post(CHAT, json=body).json()["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "get" and choice["message"]["reasoning_content"]
        assert not choice["message"]["content"]
    stream = thinker.post(CHAT, json=ROUTES[CHAT] | form | {"stream": True}).text.split("\n\n")
    deltas = [json.loads(each[6:])["choices"][0]["delta"] for each in stream if each.startswith("data: {")]
    assert "".join(each.get("content") or "" for each in deltas)[:-3] in ("yes", "no")
    assert any(each.get("reasoning_content") for each in deltas)


@pytest.mark.parametrize("thinker", ["qwen3_6"], indirect=True)
def test_thoughts_of_history_are_kept_so_that_the_next_question_hits(thinker):
    use = {"type": "tool_use", "id": "c", "name": "get", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "rain " * 200}
    for keep, is_kept in ((None, True), ("all", True), ({"type": "thinking_turns", "value": 1}, False)):
        thought = {"type": "thinking", "thinking": f"Hm {keep}.", "signature": ""}
        turns = [*HI, {"role": "assistant", "content": [thought, use]}, {"role": "user", "content": [result]}]
        edits = [{"type": "clear_thinking_20251015", "keep": keep}] if keep else []
        fields = {"max_tokens": 1, "context_management": {"edits": edits}, **ON, "cache_salt": f"x{keep}"}
        first = thinker.post(MESSAGES, json={"messages": turns, **fields}).json()["usage"]
        turns += [{"role": "assistant", "content": [thought, {"type": "text", "text": "Rain."}]}, *HI]
        cached = thinker.post(MESSAGES, json={"messages": turns, **fields}).json()["usage"]
        num_tokens = first["input_tokens"] + first["cache_creation_input_tokens"]  # in a cold cache
        missed = num_tokens - cached["cache_read_input_tokens"]
        assert num_tokens > 1000 and (missed < 16 if is_kept else missed > 900)
