"""Datasets: exact token counts, and files that users bring."""

import json
import random
from collections import Counter
from itertools import islice
from statistics import fmean

import pytest

from tiny_llm_lab.measure.traffic.datasets import DatasetSettings, make_requests
from tiny_llm_lab.measure.traffic.lengths import LIKE_SHAREGPT, draw_lengths
from tiny_llm_lab.measure.traffic.prompts import Texts, tokenizer_for
from tiny_llm_lab.types import UserError


@pytest.fixture(scope="module")
def tokenizer():
    found = tokenizer_for(None, "default")
    assert found is not None
    return found


def made(tokenizer, seed=0, **settings):
    requests = make_requests(DatasetSettings(**settings), Texts(tokenizer, seed))
    for request in requests if tokenizer else []:
        assert len(tokenizer.encode(str(request.prompt))) == request.num_prompt_tokens
    return requests


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 50, 3000])
def test_a_text_has_exactly_as_many_tokens(tokenizer, num_tokens):
    texts = Texts(tokenizer, 1)
    drawn = [texts.exact(num_tokens) for _ in range(5)]
    assert [len(tokenizer.encode(text)) for text in drawn] == [num_tokens] * 5
    assert len(set(drawn)) == 5 or num_tokens < 3


def test_a_vocabulary_of_bytes_works_too():
    class Bytes:
        def encode(self, text):
            return list(text.encode())

        def decode(self, token_ids):
            return "".join(chr(each) for each in token_ids if each < 128)

    texts = Texts(Bytes(), 0)
    assert [len(texts.exact(count)) for count in (1, 2, 7, 100)] == [1, 2, 7, 100]


def test_random_lengths_stay_in_their_range(tokenizer):
    settings = {"num_prompts": 60, "random_input_len": 40, "random_output_len": 20}
    assert {(r.num_prompt_tokens, r.max_tokens) for r in made(tokenizer, **settings)} == {(40, 20)}
    varied = made(tokenizer, **settings, random_range_ratio=0.5, random_prefix_len=8)
    assert all(28 <= r.num_prompt_tokens <= 68 and 10 <= r.max_tokens <= 30 for r in varied)
    assert len({r.num_prompt_tokens for r in varied}) > 10
    prefix = tokenizer.encode(str(varied[0].prompt))[:8]
    assert all(tokenizer.encode(str(r.prompt))[:8] == prefix for r in varied)


def test_prefixes_repeat(tokenizer):
    requests = made(
        tokenizer,
        dataset_name="prefix_repetition",
        num_prompts=12,
        prefix_repetition_prefix_len=30,
        prefix_repetition_suffix_len=10,
        prefix_repetition_num_prefixes=3,
        prefix_repetition_output_len=5,
    )
    prefixes = [tuple(tokenizer.encode(str(r.prompt))[:30]) for r in requests]
    assert sorted(Counter(prefixes).values()) == [4, 4, 4] and len({r.prompt for r in requests}) == 12
    assert {(r.num_prompt_tokens, r.max_tokens) for r in requests} == {(40, 5)}
    assert prefixes != sorted(prefixes)  # shuffled


def test_mixed_has_20_long_and_80_short_prompts_shuffled(tokenizer):
    requests = made(tokenizer, dataset_name="mixed")
    kinds = Counter((r.kind, r.num_prompt_tokens, r.max_tokens) for r in requests)
    assert kinds == {("long", 3000, 64): 20, ("short", 50, 128): 80}
    order = [r.kind for r in requests]
    assert order not in (sorted(order), sorted(order, reverse=True))
    assert order == [r.kind for r in made(tokenizer, dataset_name="mixed")]
    assert order != [r.kind for r in made(tokenizer, seed=1, dataset_name="mixed")]


def test_a_custom_file_is_repeated(tokenizer, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "once upon a time", "max_tokens": 7}\n{"prompt": "the end", "arrival_s": 2.5}\n'
    )
    requests = made(
        tokenizer, dataset_name="custom", dataset_path=str(file), num_prompts=3, custom_output_len=9
    )
    assert [(r.prompt, r.max_tokens, r.arrival_s) for r in requests] == [
        ("once upon a time", 7, 0.0),
        ("the end", 9, 2.5),
        ("once upon a time", 7, 0.0),
    ]


def test_sharegpt_takes_the_first_two_turns_that_fit(tmp_path):
    def talk(*turns):
        return {"conversations": [{"from": "x", "value": turn} for turn in turns]}

    long, short = "word " * 1025, "one two three four"
    talks = [talk(short, "a b c d e", "more"), talk(long, short), talk("too short", short), talk(short, "no")]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([*talks, talk("only one turn"), talk()]))
    settings = {"dataset_name": "sharegpt", "dataset_path": str(file), "num_prompts": 2}
    assert [(r.prompt, r.max_tokens) for r in made(None, **settings)] == [(short, 5)] * 2
    fixed = made(None, **settings, sharegpt_output_len=3)
    assert [(r.prompt, r.max_tokens) for r in fixed] == [(short, 3)] * 2


def test_sharegpt_without_a_file_has_its_lengths(tokenizer):
    lengths = list(islice(draw_lengths(random.Random(0), LIKE_SHAREGPT, 1024, 2048), 20_000))
    assert all(4 <= prompt <= 1024 and output >= 4 and prompt + output <= 2048 for prompt, output in lengths)
    means = [fmean(each) for each in zip(*lengths, strict=True)]
    # The spread of a mean of 20,000 is below 1.5 tokens.
    assert means == pytest.approx([230, 203], abs=6)
    requests = made(tokenizer, dataset_name="sharegpt", num_prompts=30)
    assert len({request.num_prompt_tokens for request in requests}) > 20
    fixed = made(tokenizer, dataset_name="sharegpt", num_prompts=3, sharegpt_output_len=7)
    assert [request.max_tokens for request in fixed] == [7] * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "has no usable conversation"),
        ("{broken", "not a ShareGPT file"),
        ("[1]", "has no usable conversation"),
        ("{}", "not a ShareGPT file"),
        ("[" * 100_000, "not a ShareGPT file"),
        (None, "cannot read"),
    ],
)
def test_a_bad_sharegpt_file_is_named(content, message, tmp_path):
    file = tmp_path / "sharegpt.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=message):
        made(None, dataset_name="sharegpt", dataset_path=str(file))


@pytest.mark.parametrize(
    "bad",
    [
        1, None, [], {}, {"id": "x"}, {"conversations": None}, {"conversations": 5}, {"conversations": {}},
        {"conversations": [{"value": "a"}]}, {"conversations": [{"value": 1}, {"value": "b"}]},
        {"conversations": [{"text": "a"}, {"value": "b"}]}, {"conversations": ["a", "b"]},
        {"conversations": "ab"},
    ],
)  # fmt: skip
def test_one_bad_entry_of_sharegpt_is_left_out_and_counted(bad, tmp_path, capsys):
    file = tmp_path / "sharegpt.json"
    good = {"conversations": [{"value": "one two three four"}, {"value": "a b c d e"}]}
    file.write_text(json.dumps([good, bad, good]))
    found = made(None, dataset_name="sharegpt", dataset_path=str(file), num_prompts=2)
    assert [each.prompt for each in found] == ["one two three four"] * 2
    assert "1 of 3 entries have no two turns: left out, first entry 1" in capsys.readouterr().err


def test_a_file_that_never_ends_is_refused():
    for name in ("sharegpt", "custom"):
        with pytest.raises(UserError, match="/dev/zero has more than 64 MiB"):
            made(None, dataset_name=name, dataset_path="/dev/zero")


def test_no_tokenizer_is_downloaded_unasked():
    assert tokenizer_for(None, "Qwen/Qwen3-0.6B") is None and tokenizer_for("none", "default") is None
    assert tokenizer_for(None, "\0" * 9) is None
