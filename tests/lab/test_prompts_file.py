"""Files of prompts: what they may hold, and one line for all they may not."""

import io
import json

import pytest

from tiny_llm_lab.serving.options.prompts_file import read_prompts
from tiny_llm_lab.types import Prompt, SamplingParams, UserError


def read(tmp_path, name, text, sampling=None):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_prompts(str(path), sampling or SamplingParams())


def test_plain_lines_skip_blank_ones_and_draw_apart(tmp_path):
    prompts = read(tmp_path, "p.txt", "a\n\n  \nb c\n", SamplingParams(seed=5))
    assert [(prompt.content, prompt.sampling.seed) for prompt in prompts] == [("a", 5), ("b c", 6)]


@pytest.mark.parametrize("name", ["p.json", "p.jsonl"])
def test_objects_override_the_flags(tmp_path, name):
    entries = ["plain", {"prompt": "b", "max_tokens": 3, "stop": "x", "seed": 9, "arrival_s": 0.5}]
    entries.append({"prompt": "c", "priority": 2, "priority_class": "batch"})
    text = json.dumps(entries) if name == "p.json" else "\n".join(map(json.dumps, entries))
    plain, full, batch = read(tmp_path, name, text, SamplingParams(max_tokens=7))
    assert plain.sampling.max_tokens == 7
    assert full == Prompt("b", SamplingParams(max_tokens=3, stop=("x",), seed=9), 0.5)
    assert (batch.priority, batch.priority_class == "batch") == (2, True)


def test_stdin_may_be_json_or_lines(monkeypatch):
    for text in ('["a", "b"]', "a\nb\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert [prompt.content for prompt in read_prompts("-", SamplingParams())] == ["a", "b"]


LINE_SEPARATORS = "a\u2028b\u0085c\x0bd"


@pytest.mark.parametrize("name", ["p.json", "p.jsonl", "p.txt"])
def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_is_no_text(tmp_path, name):
    # json.dumps leaves them as they are with ensure_ascii=False, as other languages do always.
    entry = LINE_SEPARATORS if name == "p.txt" else json.dumps(LINE_SEPARATORS, ensure_ascii=False)
    text = f"[{entry}, {entry}]" if name == "p.json" else f"{entry}\n{entry}\n"
    prompts = read(tmp_path, name, "\ufeff" + text)
    assert [prompt.content for prompt in prompts] == [LINE_SEPARATORS] * 2


def test_blanks_around_a_prompt_go_unless_it_is_raw(tmp_path):
    path = tmp_path / "p.json"
    path.write_text('["  a ", {"prompt": " "}]')
    for raw, contents in ((False, ["a", ""]), (True, ["  a ", ""])):
        assert [each.content for each in read_prompts(str(path), SamplingParams(), raw)] == contents


def test_after_the_last_seed_comes_the_first(tmp_path):
    prompts = read(tmp_path, "p.txt", "a\nb\n", SamplingParams(seed=2**64 - 1))
    assert [prompt.sampling.seed for prompt in prompts] == [2**64 - 1, 0]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("p.json", '[{"prompt": "a", "seed": -1}]', "entry 0: seed must be 0 to 2**64 - 1"),
        ("p.json", '["a", "b\\ud83d"]', "entry 1: it is not UTF-8 text"),
        ("p.json", "[1,", "not JSON at line 1"),
        ("p.json", "{}", "expected a JSON list"),
        ("p.json", "[" * 100_000, "nested too deeply"),
        ("p.json", "[]", "is empty: write one"),
        ("p.txt", "\n\n", "is empty: write one"),
        ("p.json", "[1]", 'entry 0: expected a string or an object with a string "prompt"'),
        ("p.json", '["a", {"prompt": 3}]', "entry 1: expected a string"),
        ("p.json", '[{"prompt": "a", "maxtokens": 1}]', "unknown field 'maxtokens'"),
        ("p.json", '[{"prompt": "a", "arrival_s": -1}]', "arrival_s must be 0 or more"),
        ("p.json", '[{"prompt": "a", "arrival_s": Infinity}]', "arrival_s must be 0 or more"),
        ("p.jsonl", '"a"\n\n{"prompt"', "not JSON at line 3"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, name, text, complaint):
    with pytest.raises(UserError) as caught:
        read(tmp_path, name, text)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe")
    for path, complaint in ((tmp_path / "no.txt", "No such file"), (tmp_path / "p.txt", "not UTF-8")):
        with pytest.raises(UserError, match=complaint):
            read_prompts(str(path), SamplingParams())
