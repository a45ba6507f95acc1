"""Pictures in this process: LLM, AsyncLLM and `chat /image FILE`; the places of pictures in a template."""

import asyncio
import io
import sys

import numpy as np
import pytest
from tests.helpers.fake_serving import parse
from tests.helpers.picture_files import data_url, file_of, picture, picture_config

from tiny_llm_lab import LLM, AsyncLLM, SamplingParams
from tiny_llm_lab.runtime.models.text.chat_form import conversation_for, pictures_of, with_end
from tiny_llm_lab.runtime.models.text.template_facts import TemplateFacts
from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat
from tiny_llm_lab.runtime.pictures.contents import Contents, placed
from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.serving.terminal import command
from tiny_llm_lab.serving.terminal.command import EngineAnswers
from tiny_llm_lab.types import UserError

SEES, FOUR = "random:qwen3-vl-shrunk", SamplingParams(max_tokens=4)
IMAGE = picture(300, 200)


def asked(*parts):
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]


@pytest.fixture(scope="module")
def llm():
    with LLM(SEES) as llm:
        yield llm


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "a b.png"
    path.write_bytes(file_of(IMAGE))
    return path


def test_all_ways_to_give_a_picture_are_the_same(llm, file):
    url = data_url(file.read_bytes())
    ways = [{"type": "image", "image": each} for each in (IMAGE, file, str(file), f"file://{file}", url)]
    ways += [{"type": "image_url", "image_url": {"url": url}}, {"type": "input_image", "image_url": url}]
    first, *others = llm.chat([asked(each) for each in ways], FOUR)
    assert first.token_ids and {each.token_ids for each in others} == {first.token_ids}
    (bare, other) = llm.chat([asked(), asked({"type": "image", "image": picture(300, 200, seed=1)})], FOUR)
    assert bare.num_prompt_tokens < first.num_prompt_tokens == other.num_prompt_tokens

    async def alone():
        async with AsyncLLM(SEES) as there:
            return [each async for each in there.chat(asked(ways[1]), FOUR)][-1].completion.token_ids

    assert asyncio.run(alone()) == first.token_ids


UNREADABLE = [
    ({"type": "image", "image": "/no/such.png"}, "cannot be read from /no/such.png"),
    ({"type": "image", "image": 7}, "is no path, data URL or picture"),
    ({"type": "image", "image": picture(4000, 10)}, "one side may be 200 times the other"),
    ({"type": "image", "image": "https://a.example/b.png"}, "save it, and name its path"),
    ({"type": "image", "image": __file__}, "is no PNG"),
]


@pytest.mark.parametrize(("part", "says"), UNREADABLE)
def test_what_cannot_be_read_is_named(llm, part, says):
    with pytest.raises(UserError, match=r"messages\[0\].content\[0\] .*" + says):
        llm.chat([asked(part)], FOUR)


def test_a_model_of_text_takes_parts_of_text():
    with LLM() as llm:
        parts, text = llm.chat([asked(), "What is it?"], FOUR)
        assert parts.token_ids == text.token_ids
        with pytest.raises(UserError, match="this model reads text only"):
            llm.chat([asked({"type": "image", "image": IMAGE})], FOUR)


def test_a_picture_comes_with_the_next_question(llm, file, monkeypatch, capsys):
    told, stream = [], EngineAnswers.stream

    def recorded(self, messages, sampling):
        told.append([each["content"] for each in messages])
        return stream(self, messages, sampling)

    monkeypatch.setattr(EngineAnswers, "stream", recorded)
    typed = f"/image {file}\n/image {__file__}\n/image none.png\nWhat is it?\nAnd now?\n/clear\n/image\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode()), "utf-8"))
    assert command.run(parse(command, "--model", SEES, "--max-tokens", "4")) == 0
    first, second = told
    shown = {"type": "image_url", "image_url": {"url": data_url(file.read_bytes())}}
    assert first == [[shown, {"type": "text", "text": "What is it?"}]]
    assert second == [*first, second[1], "And now?"] and isinstance(second[1], str)
    out, err = capsys.readouterr()
    (answer,) = llm.chat([asked(shown)], FOUR)
    assert out.startswith(answer.text)
    assert f"{file} comes with your next question" in err and "error" in err
    assert "is no PNG" in err and "cannot be read from none.png" in err and "/image FILE adds" in err


# The places of pictures in a conversation


def test_pictures_keep_the_order_that_a_template_gives_their_turns():
    contents = Contents(3, has_tower=True)
    shown = [contents.part({"type": "image", "image": name}, name) for name in ("a", "b", "c")]
    calls = [{"id": name, "function": {"name": "f", "arguments": "{}"}} for name in ("x", "y")]
    turns = [
        {"role": "user", "content": f"one {shown[0]} two"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "y", "content": shown[1]},
        {"role": "tool", "tool_call_id": "x", "content": f"{shown[2]}three"},
    ]
    facts = TemplateFacts(has_tools=True, has_many_calls=False)
    formed = conversation_for(facts, turns, contents.mark)
    assert pictures_of(formed) == (0, 2, 1)
    text = {"type": "text", "text": "one "}
    assert formed[0]["content"] == [text, {"type": "image", "image": 0}, {"type": "text", "text": " two"}]
    assert with_end(formed[-1], "!")["content"][-1] == {"type": "text", "text": "!"}
    assert with_end(formed[2], "!")["content"][-1] == {"type": "text", "text": "three!"}


def test_a_prompt_has_the_rows_of_each_picture_in_its_place():
    config = picture_config(9)
    small, large = (Picture(np.zeros((4 * count, 3, 16, 16), np.uint8), 4, count) for count in (2, 4))
    chat = RenderedChat("any", pictures=(1, 0)).extended("more")
    assert placed(chat, [1, 9, 2, 9, 3], [small, large], config) == (
        [1, *[9] * 4, 2, *[9] * 2, 3],
        (large, small),
    )
    for order, tokens in (((0,), [9]), ((0, 1), [9]), ((0, 1), [9, 9, 9]), ((0, 0), [9, 9]), ((), [1])):
        with pytest.raises(UserError, match="of 2 pictures: send them in a user's message"):
            placed(RenderedChat("any", pictures=order), tokens, [small, large], config)


def test_a_picture_is_within_a_line_and_texts_are_lines():
    contents = Contents(2, has_tower=True)
    text = [{"type": "text", "text": each} for each in ("a", "b\n", "\n5")]
    shown = {"type": "image", "image": "x"}
    said = contents.text([text[0], text[1], shown, shown, text[2]], "here")
    assert said.replace(contents.mark, "@") == "a\nb\n@0000@0001\n5"
    assert [each.place for each in contents.sources] == ["here[2]", "here[3]"]
