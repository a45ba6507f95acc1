"""Chat: what the template says is what the model reads, and one line when the template fails."""

import json

import pytest
from tests.helpers.checkpoints import edit_json

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.runtime.models.text import tokenizer
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.types import SamplingParams, UserError

BEGIN, IM_START = 259, 257  # the first id that is no byte and no special token serves as begin-of-text
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def with_begin(copy):
    """A checkpoint whose tokenizer and whose template both write a begin-of-text token."""
    folder = copy("random:qwen3-shrunk")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    word = next(name for name, token in content["model"]["vocab"].items() if token == BEGIN)
    begin = {"SpecialToken": {"id": word, "type_id": 0}}
    content["added_tokens"].append({**content["added_tokens"][0], "id": BEGIN, "content": word})
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {word: {"id": word, "ids": [BEGIN], "tokens": [word]}},
    }
    path.write_text(json.dumps(content))
    edit_json(folder / "tokenizer_config.json", bos_token=word, chat_template=TEMPLATE)
    return folder


def test_a_rendered_chat_begins_once(with_begin):
    tokenizer = load_checkpoint(with_begin).tokenizer
    assert tokenizer.encode("Hi") == [BEGIN, *b"Hi"]
    assert tokenizer.encode(as_chat(tokenizer, "Hi", raw=True)) == [BEGIN, *b"Hi"]
    assert tokenizer.encode(as_chat(tokenizer, "Hi")) == [BEGIN, *b"Hi"]


def test_a_template_without_a_beginning_gets_none(with_begin):
    edit_json(with_begin / "tokenizer_config.json", chat_template="<|im_start|>{{ messages[0].content }}")
    tokenizer = load_checkpoint(with_begin).tokenizer
    assert tokenizer.encode(as_chat(tokenizer, "Hi")) == [IM_START, *b"Hi"]


def test_both_loops_compute_the_rendered_chat_as_it_is(with_begin):
    llm, checkpoint = load_solution("ref"), load_checkpoint(with_begin, dtype="float32")
    model, sampling = llm.build_model(checkpoint), SamplingParams(max_tokens=1)
    text = as_chat(checkpoint.tokenizer, "Hi")
    (done,) = llm.batch_generate(model, checkpoint.tokenizer, [text], sampling=sampling)
    assert done.num_prompt_tokens == 3
    *_, ended = llm.stream_generate(model, checkpoint.tokenizer, text, sampling)
    assert ended.completion.num_prompt_tokens == 3


@pytest.mark.parametrize("blank", ["", " ", "\n\t \u3000"])
def test_a_prompt_of_blanks_is_empty_unless_raw(blank):
    llm, checkpoint = load_solution("ref"), load_checkpoint("random:qwen3-shrunk")
    assert as_chat(checkpoint.tokenizer, blank) == ""
    assert as_chat(checkpoint.tokenizer, blank, raw=True) == blank
    (done,) = llm.batch_generate(
        llm.build_model(checkpoint), checkpoint.tokenizer, [as_chat(checkpoint.tokenizer, blank)]
    )
    assert done.error == "the prompt is empty: give at least one token"


def test_blanks_around_a_question_stay():
    tokenizer = load_checkpoint("random:qwen3-shrunk").tokenizer
    assert "user\n  x \n<|im_end|>" in as_chat(tokenizer, "  x \n")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for", "unexpected 'end of template'"),
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{{ messages[0].content.nothing.more }}", "'str object' has no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_a_template_that_fails_is_one_line(copy, template, reason):
    folder = copy("random:qwen3-shrunk")
    edit_json(folder / "tokenizer_config.json", chat_template=template)
    tokenizer = load_checkpoint(folder).tokenizer
    with pytest.raises(UserError) as caught:
        as_chat(tokenizer, "Hi")
    cure = "fix it, or leave it out with --raw"
    assert str(caught.value).startswith(f"{folder}: its chat template failed (")
    assert reason in str(caught.value) and str(caught.value).endswith(f"): {cure}")
    assert "\n" not in str(caught.value)
    assert as_chat(tokenizer, "Hi", raw=True) == "Hi"


def test_a_template_that_does_not_end_is_one_line(copy, monkeypatch):
    monkeypatch.setattr(tokenizer, "_LONGEST_S", 0.2)
    folder = copy("random:qwen3-shrunk")
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    edit_json(folder / "tokenizer_config.json", chat_template=loop)
    with pytest.raises(UserError, match="it does not end"):
        as_chat(load_checkpoint(folder).tokenizer, "Hi")


def test_a_checkpoint_without_a_template_takes_the_text(copy):
    folder = copy("random:qwen3-shrunk")
    edit_json(folder / "tokenizer_config.json", chat_template=...)
    assert as_chat(load_checkpoint(folder).tokenizer, "Hi") == "Hi"


def test_a_text_that_is_not_unicode_is_one_line():
    tokenizer = load_checkpoint("random:qwen3-shrunk").tokenizer
    with pytest.raises(UserError, match=r"the text is not valid Unicode .*: use UTF-8"):
        tokenizer.encode("a\ud800b")
    with pytest.raises(UserError, match="is not valid Unicode"):
        tokenizer.encode(as_chat(tokenizer, "a\ud800b"))
