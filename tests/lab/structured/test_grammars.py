"""What a form allows next, whatever was drafted and rejected before."""

import json
import random

import mlx.core as mx
import numpy as np
import pytest

from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.structured.grammar_processor import GrammarProcessor
from tiny_llm_lab.runtime.structured.grammars import Grammars, processors_for
from tiny_llm_lab.types import SamplingParams, StructuredOutputs, UserError

MODELS = ("default", "random:qwen3-0.6b,layers=1,vocab=512")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"enum": [1, 22, 333]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS = (
    StructuredOutputs(json=PERSON),
    StructuredOutputs(regex="(ab|ba){2,4}c"),
    StructuredOutputs(choice=("yes", 'n"o\n', "nothing", "möglich")),
    StructuredOutputs(grammar='start: "(" start ")" | "x"'),
)


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return load_checkpoint(request.param)


@pytest.fixture(scope="module")
def grammars(model):
    return Grammars(model.tokenizer, model.config.vocab_size + 100)


@pytest.fixture(scope="module")
def default():
    found = load_checkpoint("default")
    return Grammars(found.tokenizer, found.config.vocab_size), found.tokenizer


def allowed(processor, answer, vocab_size):
    row = processor(mx.zeros(vocab_size), [1, 2], answer)
    return np.flatnonzero(np.isfinite(np.array(row))).tolist()


def walk(processor, model, seed, num_tokens=200):
    """An answer of tokens that are allowed, each as likely as the other; None when it does not end."""
    rng, answer = random.Random(seed), []
    while len(answer) < num_tokens:
        token = rng.choice(allowed(processor, answer, model.config.vocab_size))
        if token in model.tokenizer.eos_token_ids:
            return answer
        answer.append(token)
    return None


@pytest.mark.parametrize("form", FORMS, ids=["json", "regex", "choice", "grammar"])
def test_whatever_is_allowed_has_the_form(model, grammars, form):
    for seed in range(4):
        answer = walk(grammars.processor(form), model, seed)
        assert answer is not None
        text = model.tokenizer.decode(answer)
        if form.json:
            found = json.loads(text)
            assert list(found) == ["name", "age"]
            assert len(found["name"]) <= 6
            assert found["age"] in (1, 22, 333)
        elif form.regex:
            assert set(text[:-1]) == {"a", "b"}
            assert text[-1] == "c"
        elif form.choice:
            assert text in form.choice
        else:
            assert text == "(" * text.count("(") + "x" + ")" * text.count("(")


def test_at_the_end_any_end_of_sequence_and_nothing_else(model, grammars):
    processor = grammars.processor(StructuredOutputs(choice=("yes",)))
    size, ends = model.config.vocab_size + 100, sorted(model.tokenizer.eos_token_ids)
    assert len(ends) == 2
    assert not set(allowed(processor, [], size)) & set(ends)
    assert max(allowed(processor, [], size)) < model.config.vocab_size, "nothing of what only the model has"
    answer = model.tokenizer.encode("yes")
    assert allowed(processor, answer, size) == ends
    assert allowed(processor, [*answer, ends[1]], size) == ends
    assert allowed(processor, answer[:-1], size) == allowed(
        grammars.processor(StructuredOutputs(choice=("yes",))), answer[:-1], size
    ), "an end that was drafted is taken back"


def test_the_same_in_any_order(model, grammars):
    """Drafts that are right, wrong, rejected, past the end; another text altogether."""
    form, rng, size = FORMS[0], random.Random(3), model.config.vocab_size
    answers = [walk(grammars.processor(form), model, seed) for seed in range(3)]
    processor = grammars.processor(form)
    for _ in range(40):
        answer = rng.choice(answers)
        text = [*answer[: rng.randrange(len(answer) + 1)]]
        if rng.random() < 0.4:
            text += rng.choices(range(size), k=rng.randrange(4))
        assert allowed(processor, text, size) == allowed(grammars.processor(form), text, size)
    assert processor.error is None


def test_outside_of_the_form_only_the_end(default):
    grammars, tokenizer = default
    processor = grammars.processor(StructuredOutputs(regex="a+"))
    wrong = tokenizer.encode("b")
    assert allowed(processor, wrong, 2048) == sorted(tokenizer.eos_token_ids)
    assert allowed(processor, [10**6], 2048) == sorted(tokenizer.eos_token_ids)
    assert allowed(processor, [-1], 2048) == sorted(tokenizer.eos_token_ids)
    assert set(tokenizer.encode("a")) <= set(allowed(processor, [], 2048))


@pytest.mark.parametrize("schema", [{"type": "object"}, {"x-guidance": {"whitespace_flexible": True}}])
def test_no_room_for_endless_whitespace(default, schema):
    grammars, tokenizer = default
    for form in (StructuredOutputs(json=schema), StructuredOutputs(json_object=True)):
        assert any(
            not tokenizer.decode([token]).isspace()
            for token in allowed(grammars.processor(form), tokenizer.encode("{"), 2048)
        )
        two_spaces = [*tokenizer.encode("{"), *tokenizer.encode(" "), *tokenizer.encode(" ")]
        assert allowed(grammars.processor(form), two_spaces, 2048) == sorted(tokenizer.eos_token_ids)


def test_a_form_that_becomes_too_costly_ends_the_answer_and_says_why(default, caplog):
    grammars, tokenizer = default
    processor = grammars.processor(StructuredOutputs(regex="(.*a.{500}){50}"))
    assert len(allowed(processor, [], 2048)) > 2
    assert allowed(processor, tokenizer.encode("a" * 2000), 2048) == sorted(tokenizer.eos_token_ids)
    assert processor.error is not None
    assert "too many" in processor.error
    assert allowed(processor, [], 2048) == sorted(tokenizer.eos_token_ids), "what failed stays as it is"
    assert [each.getMessage() for each in caplog.records] == [
        f"an answer ends within its form: {processor.error}"
    ]


class Raises:
    def try_consume_tokens(self, tokens):
        raise RuntimeError("broken\nin two lines")


def test_a_processor_never_raises():
    processor = GrammarProcessor(Raises(), {3, 99})
    assert allowed(processor, [1], 10) == [3]
    assert processor.error == "broken"


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_logits_that_stay_are_as_they_were(default, dtype):
    row = mx.arange(2048).astype(dtype)
    found = default[0].processor(StructuredOutputs(regex="a"))(row, [], [])
    assert found.dtype == dtype
    (token,) = default[1].encode("a")
    assert found[token].item() == row[token].item()


CHAIN = "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(400)) + '\na400: "x"'
OBJECTS = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(1000)}


DEEP = [{"grammar": CHAIN}, {"json": {"$ref": "#/$defs/a0", "$defs": {**OBJECTS, "a1000": {}}}}]


@pytest.mark.parametrize("form", DEEP, ids=["rules", "references"])
def test_deep_forms_have_a_stack(default, form):
    """On a usual stack the second ends the process."""
    assert allowed(default[0].processor(StructuredOutputs(**form)), [], 2048)


UNUSABLE = [
    ({"json": {"type": "foo"}}, 'at /type: "foo" is none of'),
    ({"json": {"$ref": "http://somewhere/else"}}, "nothing in this schema is called"),
    ({"json": {"type": "string", "minLength": 3, "maxLength": 2}}, "cannot be used"),
    ({"regex": "(a"}, "unclosed group"),
    ({"regex": "(" * 30_000}, "expression can't be read"),
    ({"grammar": "start: x"}, "unknown name"),
    ({"grammar": "start: " + "(" * 30_000}, "cannot be used"),
    ({"grammar": CHAIN * 2}, "rules, more than 512"),
    ({"grammar": CHAIN.replace("\n", "\r\n") * 2}, "rules, more than 512"),
]


@pytest.mark.parametrize(("form", "complaint"), UNUSABLE, ids=lambda each: str(each)[:20])
def test_a_form_that_cannot_be_used_is_one_short_line(default, form, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        default[0].processor(StructuredOutputs(**form))
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


MALFORMED = [
    ({}, "not none"),
    ({"json": {}, "regex": "a"}, "not json, regex"),
    ({"json": "{"}, "not JSON"),
    ({"json": "[1]"}, "must be an object"),
    ({"json": {"a": float("nan")}}, "not JSON"),
    ({"json": "[" * 60_000}, "nested too deeply"),
    ({"json": {"a": "x" * 530_000}}, "^json has 530009 characters, more than 524288: shorten it$"),
    ({"regex": "a" * 70_000}, "65536"),
    ({"regex": 3}, "must be text"),
    ({"json_object": 3}, "True or left out"),
    ({"choice": ["a", ""]}, "at least one character"),
    ({"choice": []}, "1 to 1024"),
    ({"choice": ["a"] * 1025}, "1 to 1024"),
]


@pytest.mark.parametrize(("form", "complaint"), MALFORMED, ids=lambda each: str(each)[:20])
def test_a_form_is_checked_before_it_costs(form, complaint):
    with pytest.raises(UserError, match=complaint):
        StructuredOutputs(**form)


def test_processors_of_a_request(default):
    assert processors_for(SamplingParams(), default[0]) == ()
    form = StructuredOutputs(regex="a")
    (processor,) = processors_for(SamplingParams(structured_outputs=form), default[0])
    (other,) = processors_for(SamplingParams(structured_outputs=form), default[0])
    assert processor is not other, "each request has a place of its own in the form"


def test_a_copy_has_a_place_of_its_own(default):
    grammars, tokenizer = default
    first = grammars.processor(StructuredOutputs(choice=("yes",)))
    second = first.copy()
    answer = tokenizer.encode("yes")
    assert (
        allowed(first, answer, 2048)
        == allowed(second.copy(), answer, 2048)
        == sorted(tokenizer.eos_token_ids)
    )
    assert set(answer[:1]) <= set(allowed(second, [], 2048))


def test_a_tokenizer_of_one_s_own_has_no_forms():
    with pytest.raises(UserError, match="load_checkpoint"):
        Grammars(object(), 10).processor(StructuredOutputs(regex="a"))
