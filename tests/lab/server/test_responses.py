"""/v1/responses through a model that says what it is told."""

import random
from itertools import pairwise

import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.scripted_client import CALL, FLAT, HI
from transformers import AutoTokenizer

from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser, ReasoningParser, ToolCallParser
from tiny_llm_lab.serving.server.routes.responses import OutputItems, TextScores


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
