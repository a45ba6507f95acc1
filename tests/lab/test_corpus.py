"""The seeded notes and questions that recall is measured with."""

import random
import re
from pathlib import Path

import pytest
import tokenizers
from recipes.default_model.strange_facts import make_strange_fact

import tiny_llm_lab.runtime.models
from tiny_llm_lab.measure.corpus import recall
from tiny_llm_lab.measure.corpus.words import ALL_SLOT_WORDS, NAMES

FOLDER = Path(tiny_llm_lab.runtime.models.__file__).parent / "default"
FACT = re.compile(r"(\w+) keeps the (\w+) (\w+) (\w+) the (\w+)\.")


@pytest.fixture(scope="session")
def tokenizer():
    return tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="session")
def encode(tokenizer):
    return lambda text: list(tokenizer.encode(text).ids)


def facts_in(text):
    return [recall.Fact(*found) for found in FACT.findall(text)]


def test_the_same_seed_says_the_same(encode):
    assert recall.recall_questions(7, 3, 200, encode) == recall.recall_questions(7, 3, 200, encode)
    assert recall.recall_questions(7, 3, 200, encode) != recall.recall_questions(8, 3, 200, encode)


@pytest.mark.parametrize("context", [64, 128, 512, 2048])
def test_recall_prompts_come_close_to_the_context_and_never_pass_it(context, encode):
    for question in recall.recall_questions(1, 20, context, encode):
        tokens = len(encode(recall.render_prompt(question.user)))
        assert tokens == question.context_tokens <= context
        assert tokens > context - 40


def check_recall_question(question):
    assert question.user.count(question.answer) == 1
    facts = facts_in(question.user)
    assert len(facts) == question.facts
    assert len({fact.name for fact in facts}) == len(facts), "a name must be the key of one fact only"
    (asked,) = facts_in(question.answer)
    assert question.user.endswith((asked.where_question, asked.what_question))
    assert all(recall.is_held_out(fact) for fact in facts)


def test_every_fact_asked_for_stands_in_the_prompt_once(encode):
    for question in recall.recall_questions(2, 40, 1024, encode):
        check_recall_question(question)


def test_asked_facts_stand_anywhere(encode):
    questions = recall.recall_questions(4, 100, 512, encode)
    places = [question.user.index(question.answer) / len(question.user) for question in questions]
    assert min(places) < 0.1 and max(places) > 0.8
    assert 0.35 < sum(places) / len(places) < 0.6


def test_a_context_too_short_for_a_fact_is_an_error(encode):
    with pytest.raises(ValueError, match="64 or more"):
        recall.recall_questions(1, 1, 16, encode)


def test_notes_for_training_hold_no_held_out_combination():
    rng = random.Random(5)
    seen = 0
    for _ in range(3000):
        notes = recall.make_notes(
            rng, 60, lambda text: len(text.split()), strange_fact=make_strange_fact, strange_share=0.2
        )
        seen += len(notes.facts)
        assert not any(recall.is_held_out(fact) for fact in facts_in(notes.text))
        assert not any(recall.is_held_out(fact) for fact in notes.facts)
    assert seen > 6000


def test_an_answer_restates_the_fact():
    fact = recall.Fact("Mira", "brass", "compass", "in", "attic")
    answers = {recall.ask(random.Random(seed), fact) for seed in range(20)}
    assert {answer.question for answer in answers} == {
        "Where does Mira keep the brass compass?",
        "What does Mira keep in the attic?",
    }
    assert {answer.answer for answer in answers} == {"Mira keeps the brass compass in the attic."}


TEXTS = ["", " ", "12345", "3.14 + 007", "🎉 naïve 日本語\n\n\tend ", "a\x00b", "Zürich's  x"]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_gives_back_any_text(text, tokenizer, encode):
    assert tokenizer.decode(encode(text), skip_special_tokens=False) == text


def test_the_words_of_the_lists_are_single_tokens(encode):
    assert [word for word in (*NAMES, *ALL_SLOT_WORDS) if len(encode(" " + word)) != 1] == []
    assert [name for name in NAMES if len(encode(name)) != 1] == []
