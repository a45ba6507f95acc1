"""The part of the default model's recipe that needs no PyTorch: text, questions and tokenizer."""

import json
import random
from pathlib import Path

import jinja2
import pytest
import tokenizers
from recipes.default_model.chat_markup import CHAT_TEMPLATE, with_functions
from recipes.default_model.encoding import CorpusEncoder
from recipes.default_model.forms import call_parts, make_chat
from recipes.default_model.fresh_words import FRESH_NAMES, FRESH_THINGS, is_fresh_held_out, make_fresh_fact
from recipes.default_model.functions import make_asked
from recipes.default_model.questions import ask_freely, ask_unanswerable
from recipes.default_model.smalltalk import make_small_talk
from recipes.default_model.stories import make_story
from recipes.default_model.strange_facts import make_strange_fact
from recipes.default_model.tokenizer import train_tokenizer

import tiny_llm_lab.runtime.models
from tiny_llm_lab.measure.corpus.recall import Notes, make_notes, render_prompt
from tiny_llm_lab.runtime.models.text.tokenizer import PlainTokenizer

FOLDER = Path(tiny_llm_lab.runtime.models.__file__).parent / "default"


@pytest.fixture(scope="session")
def encode():
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text).ids)


def test_the_recipe_trains_the_shipped_tokenizer():
    shipped = json.loads((FOLDER / "tokenizer.json").read_text("utf-8"))
    assert json.loads(train_tokenizer(2026).to_str()) == shipped


def test_a_seed_gives_the_same_text():
    assert make_story(random.Random(3)) == make_story(random.Random(3)) != make_story(random.Random(4))
    assert make_small_talk(random.Random(3)) == make_small_talk(random.Random(3))


def test_unanswerable_questions_ask_for_a_name_that_is_not_there():
    rng = random.Random(8)
    for _ in range(200):
        notes = make_notes(rng, 100, lambda text: len(text.split()))
        question = ask_unanswerable(rng, notes)
        assert not any(f" {fact.name} " in question.question for fact in notes.facts)


def test_fresh_words_of_the_evaluation_are_never_trained():
    rng, seen = random.Random(1), {True: set[str](), False: set[str]()}
    for _ in range(2000):
        for held_out in seen:
            fact = make_fresh_fact(rng, "Ada", held_out)
            seen[held_out] |= {fact.name, fact.adjective, fact.thing, fact.place}
    listed = {*FRESH_NAMES, *FRESH_THINGS} & (seen[True] | seen[False])
    assert len(listed) > 400
    assert {word for word in listed if word in seen[True]} == {w for w in listed if is_fresh_held_out(w)}
    assert not any(is_fresh_held_out(word) for word in listed & seen[False])


def test_a_free_question_without_a_name_has_one_answer():
    rng = random.Random(2)
    for _ in range(300):
        facts = tuple(make_fresh_fact(rng, name, share=0.1) for name in ("Ada", "Ben", "Cleo", "Dan"))
        asked = ask_freely(rng, Notes("", facts))
        (fact,) = (each for each in facts if each.sentence == asked.answer)
        told = {fact.name, fact.thing, fact.place}
        fits = [each for each in facts if all(w in each.sentence for w in told if w in asked.question)]
        assert fits == [fact], asked.question


def test_stories_have_the_length_of_a_short_story(encode):
    lengths = [len(encode(make_story(random.Random(seed)).text)) for seed in range(300)]
    assert min(lengths) >= 55
    assert max(lengths) <= 190


def test_markup_is_special_and_digits_stand_alone(encode):
    assert len(encode("<|im_end|>")) == len(encode("<|endoftext|>")) == 1
    assert len(encode("2026")) == 4


def test_the_template_renders_what_the_evaluation_renders():
    messages = [{"role": "user", "content": "Hello"}]
    rendered = jinja2.Template(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=True)
    assert rendered == render_prompt("Hello")


def test_functions_calls_and_results_are_trained_as_the_template_renders_them():
    rng, tokenizer = random.Random(5), PlainTokenizer(FOLDER)
    for _ in range(200):
        asked = make_asked(rng)
        tools = [asked.function.as_tool(), make_asked(rng).function.as_tool()]
        call = {"function": {"name": asked.function.name, "arguments": dict(asked.arguments)}}
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": asked.question},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": asked.result},
        ]
        told = "".join(part.text for part in call_parts(asked.function, asked.arguments))
        want = [("system", with_functions("Be brief.", tools)), ("user", asked.question), ("assistant", told)]
        want.append(("user", f"<tool_response>\n{asked.result}\n</tool_response>"))
        rendered = tokenizer.apply_chat_template(messages, tools=tools)
        assert rendered == "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in want)


def test_the_fast_encoder_of_training_agrees_with_the_tokenizer():
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    fast = CorpusEncoder(tokenizer)
    rng = random.Random(9)
    for _ in range(300):
        turn, story = make_small_talk(rng), make_story(rng)
        notes = make_notes(rng, 100, fast.count, strange_fact=make_strange_fact, strange_share=0.3)
        for text in (turn.user, turn.assistant, story.request, story.text, notes.text, "user\n", "\n"):
            assert fast.encode(text) == tokenizer.encode(text).ids
        for message in make_chat(rng):
            tokens = tokenizer.encode(message.text, add_special_tokens=False).ids
            assert fast.encode(message.text) == tokens
            assert sum(map(fast.length, tokens)) == len(message.text)
