"""/v1/responses through a model that says what it is told."""

import json
import random
from itertools import pairwise

import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.scripted_client import CALL, FLAT, HI
from transformers import AutoTokenizer

from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser, ReasoningParser, ToolCallParser
from tiny_llm_lab.serving.server.routes.responses import OutputItems, TextScores


def test_responses_as_items(server, monkeypatch):
    ids = (server.ids["<think>"], *b"Hm.", server.ids["</think>"], *b"One moment.")
    monkeypatch.setattr(server.engine, "token_ids", ids)
    server.engine.script = f"<think>Hm.</think>One moment.{CALL}"
    done = server.respond(model="scripted", input="Hi", tools=[FLAT], instructions="Be kind")
    assert [each.type for each in done.output] == ["reasoning", "message", "function_call"]
    assert (done.output_text, done.status) == ("One moment.", "completed")
    assert done.output[0].content[0].text == "Hm."
    assert (done.output[2].name, done.output[2].arguments) == ("get", '{"city": "Köln"}')
    assert done.usage.output_tokens_details.reasoning_tokens == 3
    assert "system\n{" in server.prompt() and "Be kind" in server.prompt()


def test_responses_as_events(server):
    server.engine.script, server.engine.stride = f"<think>Hm.</think>One moment.{CALL}", 4
    events = list(server.respond(model="scripted", input="Hi", tools=[FLAT], stream=True))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    kinds = [each.type for each in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    names = {each.response.id for each in events if hasattr(each, "response")}
    assert len(names) == 1 and names.pop().startswith("resp_")
    final = events[-1].response.output
    assert [each.type for each in final] == ["reasoning", "message", "function_call"]
    for kind, text in (("reasoning_text", "Hm."), ("output_text", "One moment.")):
        assert "".join(each.delta for each in events if each.type == f"response.{kind}.delta") == text
        assert [each.text for each in events if each.type == f"response.{kind}.done"] == [text]
    pieces = [each.delta for each in events if each.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == final[2].arguments == '{"city": "Köln"}'
    done = [each for each in events if each.type == "response.function_call_arguments.done"]
    assert [(each.name, each.arguments) for each in done] == [("get", final[2].arguments)]
    added = [each.item.id for each in events if each.type == "response.output_item.added"]
    done = [each.item for each in events if each.type == "response.output_item.done"]
    assert done == final and added == [each.id for each in final], "each as it is in the whole answer"
    assert {each.status for each in final} == {"completed"}


def test_the_items_of_a_response_are_its_history(server):
    server.engine.script = f"<think>Hm.</think>One moment.{CALL}"
    first = server.respond(model="scripted", input="Hi", tools=[FLAT])
    output = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "rain"}
    history = [{"role": "user", "content": "Hi"}, *first.output, output]
    kwargs = {"chat_template_kwargs": {"keep_thoughts": True}}
    server.respond(model="scripted", input=history, extra_body=kwargs)
    prompt = server.prompt()
    assert "<think>\nHm.\n</think>\n\nOne moment.\n<tool_call>" in prompt, "one turn"
    assert "<tool_response>rain</tool_response>" in prompt
    assert prompt.count("assistant") == 2


def test_tools_of_openai_are_left_out_and_namespaces_unfolded(server):
    """As Codex sends them, and takes back their calls."""
    call = CALL.replace('"get"', '"maps.get"')
    tools = [FLAT, {"type": "namespace", "name": "maps", "tools": [FLAT]}, {"type": "web_search"}]
    named = {"type": "function", "name": "maps.get"}
    for choice, script in (("auto", f"{call}\n{CALL}"), (named, call.split("\n")[1])):
        server.engine.script = script
        body = {"input": "Hi", "tools": tools, "tool_choice": choice, "enable_thinking": False}
        items = server.refused("/responses", **body).json()["output"]
        found = [(each["name"], each.get("namespace")) for each in items]
        assert found == [("get", "maps"), ("get", None)][: len(script.split("name")) - 1]
        output = {"type": "function_call_output", "call_id": items[0]["call_id"], "output": "rain"}
        history = [{"role": "user", "content": "Hi"}, items[0], output]
        server.engine.script = "ok"
        assert server.refused("/responses", input=history, tools=tools).status_code == 200
        assert '{"name": "maps.get", "arguments": {"city": "Köln"}}' in server.prompt()
        assert "web_search" not in server.prompt()


@pytest.mark.parametrize("seed", range(100))
def test_scores_are_those_of_the_text(seed):
    """Whatever tags are around it, and however long a parser keeps the text back."""
    rng = random.Random(seed)
    texts = [f"{number}é🙂<" * rng.randrange(1, 3) for number in range(8)]
    pieces, ends = [], []
    for text in texts:
        data = text.encode()
        cuts = sorted(rng.sample(range(1, len(data)), rng.randrange(len(data) - 1)))
        pieces += [{"bytes": list(data[start:end])} for start, end in pairwise([0, *cuts, len(data)])]
        ends.append(len(pieces))
    scores, num_added = TextScores(), 0
    for text, (start, end) in zip(texts, pairwise([0, *ends]), strict=True):
        if rng.random() < 0.3:
            continue  # a tag
        num_ahead = rng.randrange(end, len(pieces) + 1)
        scores.add(pieces[num_added:num_ahead])
        num_added = max(num_added, num_ahead)
        assert scores.taken(text) == pieces[start:end]
    scores.add(pieces[:2])
    assert scores.taken("of another")[-2:] == pieces[:2]


BEFORE = [
    ["</think>", "\n\n"],
    ["a", "\n", "</think>", "\n"],
    ["<think>", "a", "</", "think", ">\n"],
    ["</think>", CALL[:11], CALL[11:-12], "</tool_call>", "\n"],
    [
        "</think>",
        "<tool_call>\n",
        "<function=get>\n",
        "<parameter=city>\n",
        "7",
        "\n</parameter>\n",
        "</function>",
    ],
]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(
    "word", ["hi", "in", "think", "too", "call", "function", "on", "parameter", "am", ">", "/"]
)
def test_the_scores_of_a_text_are_not_those_of_a_tag_before_it(before, word):
    parser = AnswerParser(ReasoningParser(is_open=True), ToolCallParser({"get": {}}))
    items, tokens = OutputItems(), [*before, word, " ", word]
    for token in tokens:
        _ = [*items.add(parser.feed(token), [{"bytes": list(token.encode()), "token": token}])]
    _ = [*items.add(parser.feed("", "stop")), *items.finish(is_complete=True)]
    (part,) = items.items[-1]["content"]
    assert (
        "".join(each["token"] for each in part["logprobs"]).strip()
        == part["text"].strip()
        == f"{word} {word}"
    )


def test_allowed_tools_and_what_is_no_function(server):
    tools = [{**FLAT, "name": name} for name in ("a", "b", "c")]
    named = [{"type": "function", "name": name} for name in ("c", "a")]
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "mode": mode, "tools": named}
        assert server.refused("/responses", input="Hi", tools=tools, tool_choice=choice).status_code == 200
        prompt, form = server.prompt(), server.engine.asked[-1].structured_outputs
        assert [f'"name": "{name}"' in prompt for name in "abc"] == [True, False, True]
        assert (form is not None) == (mode == "required") and '"const": "b"' not in str(form)
    chat = [{"type": "function", "function": tool} for tool in tools]
    inner = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "b"}}]}
    allowed = {"type": "allowed_tools", "allowed_tools": inner}
    body = {"messages": HI, "tools": chat}
    assert server.refused("/chat/completions", **body, tool_choice=allowed).status_code == 200
    assert '"name": "b"' in server.prompt() and '"name": "a"' not in server.prompt()
    nobody = [{"type": "function", "name": "x"}]
    for mode, allowed in (("none", named), ("auto", 5), ("auto", nobody)):
        wrong = {"type": "allowed_tools", "mode": mode, "tools": allowed}
        refused = server.refused("/responses", input="Hi", tools=tools, tool_choice=wrong)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "tool_choice"
    custom = {"type": "custom", "custom": {"name": "x"}}
    refused = server.refused("/chat/completions", messages=HI, tools=[custom])
    assert "calls functions, not 'custom': give this tool as a function" in refused.json()["error"]["message"]


def test_the_template_gets_tools_as_they_were_sent(server, tmp_path):
    qwen_like_folder(tmp_path / "qwen")
    library = AutoTokenizer.from_pretrained(tmp_path / "qwen")
    inner = {"strict": True, "parameters": {"type": "object", "properties": {}}, "x": [1], "name": "get"}
    for function in (inner, FLAT | {"description": "d"}):
        function.pop("type", None)
        tools = [{"type": "function", "function": function}]
        wanted = library.apply_chat_template(HI, tools=tools, add_generation_prompt=True, tokenize=False)
        server.refused("/chat/completions", messages=HI, tools=tools)
        assert server.prompt() == wanted
        server.refused("/responses", input="Hi", tools=[{"type": "function", **function}])
        assert server.prompt() == wanted


NOW = {"name": "now", "description": "the time"}


@pytest.mark.parametrize("left_out", [{}, {"parameters": None}])
@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_a_function_may_have_no_parameters(server, left_out, choice):
    """OpenAI's API leaves them out of its example; templates read them."""
    chat = {
        "messages": HI,
        "tools": [{"type": "function", "function": NOW | left_out}],
        "tool_choice": choice,
    }
    flat = {"input": "Hi", "tools": [{"type": "function", **NOW, **left_out}], "tool_choice": choice}
    kind = {"type": {"required": "any"}.get(choice, choice)}
    messages = {"messages": HI, "max_tokens": 9, "tools": [NOW], "tool_choice": kind}
    for path, body in (("/chat/completions", chat), ("/responses", flat), ("/messages", messages)):
        answer = server.refused(path, **body)
        assert answer.status_code == 200, answer.text
        told = '"name": "now", "description": "the time", "parameters": {"type": "object", "properties": {}}'
        assert (told in server.prompt()) == (choice != "none"), path


def test_half_of_a_character_is_repeated_as_a_question_mark(server):
    body = json.dumps({"input": "Hi", "metadata": {"a": "\ud800"}})
    answer = server.post("/responses", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, '"metadata":{"a":"?"}' in answer.text) == (200, True)
