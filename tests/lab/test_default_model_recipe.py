"""The part of the default model's recipe that needs no PyTorch: text, questions and tokenizer."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import jinja2
import pytest
import tokenizers
from recipes.default_model.chat_markup import CHAT_TEMPLATE
from recipes.default_model.encoding import CorpusEncoder
from recipes.default_model.questions import ask_unanswerable
from recipes.default_model.smalltalk import make_small_talk
from recipes.default_model.stories import make_story
from recipes.default_model.strange_facts import make_strange_fact
from recipes.default_model.tokenizer import train_tokenizer

import tiny_llm_lab.runtime.models
from tiny_llm_lab.measure.corpus.chatml import render_prompt
from tiny_llm_lab.measure.corpus.notes import make_notes

FOLDER = Path(tiny_llm_lab.runtime.models.__file__).parent / "default"

Encode = Callable[[str], list[int]]


@pytest.fixture(scope="session")
def encode() -> Encode:
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text).ids)


def test_the_recipe_trains_the_shipped_tokenizer() -> None:
    shipped = json.loads((FOLDER / "tokenizer.json").read_text("utf-8"))
    assert json.loads(train_tokenizer(2026).to_str()) == shipped


def test_a_seed_gives_the_same_text() -> None:
    assert make_story(random.Random(3)) == make_story(random.Random(3)) != make_story(random.Random(4))
    assert make_small_talk(random.Random(3)) == make_small_talk(random.Random(3))


def test_unanswerable_questions_ask_for_a_name_that_is_not_there() -> None:
    rng = random.Random(8)
    for _ in range(200):
        notes = make_notes(rng, 100, lambda text: len(text.split()))
        question = ask_unanswerable(rng, notes)
        assert not any(f" {fact.name} " in question.question for fact in notes.facts)


def test_stories_have_the_length_of_a_short_story(encode: Encode) -> None:
    lengths = [len(encode(make_story(random.Random(seed)).text)) for seed in range(300)]
    assert min(lengths) >= 55
    assert max(lengths) <= 190


def test_markup_is_special_and_digits_stand_alone(encode: Encode) -> None:
    assert len(encode("<|im_end|>")) == len(encode("<|endoftext|>")) == 1
    assert len(encode("2026")) == 4


def test_the_template_renders_what_the_evaluation_renders() -> None:
    messages = [{"role": "user", "content": "Hello"}]
    rendered = jinja2.Template(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=True)
    assert rendered == render_prompt("Hello")


def test_the_fast_encoder_of_training_agrees_with_the_tokenizer() -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    fast = CorpusEncoder(tokenizer)
    rng = random.Random(9)
    for _ in range(300):
        turn, story = make_small_talk(rng), make_story(rng)
        notes = make_notes(rng, 100, fast.count, strange_fact=make_strange_fact, strange_share=0.3)
        for text in (turn.user, turn.assistant, story.request, story.text, notes.text, "user\n", "\n"):
            assert fast.encode(text) == tokenizer.encode(text).ids
