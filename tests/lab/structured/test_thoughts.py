"""A thought that reaches its budget: the answer is that of a thought which ended there by itself."""

import asyncio
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.real_server import client_of

from tiny_llm_lab import LLM, AsyncLLM, SamplingParams
from tiny_llm_lab.runtime.structured.grammar_processor import MaskProcessor, only
from tiny_llm_lab.runtime.structured.thoughts import Thoughts
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.types import UNCHANGED, Prompt, StructuredOutputs, UserError

FORM = StructuredOutputs(regex="(yes|no)[a-d]{3,9}")
SHAPE = ",positions=2048,seed=3"
DENSE, HYBRID = f"qwen3-shrunk{SHAPE}", f"qwen3.5-shrunk,mtp=1{SHAPE}"
# A draft model of the same tokens and other weights, which often drafts </think>, and never a form.
DRAFTS = {"off": DENSE, "ngram": DENSE, "draft": DENSE, "mtp": HYBRID}
SEEDS = 14  # of each


class Scripted(MaskProcessor):
    """Lets an answer begin with `tokens`, and only with them; `form` begins behind them."""

    def __init__(self, tokens, form=None):
        self.tokens, self.form = tokens, form

    def changes(self, answer, vocab_size):
        if len(answer) < len(self.tokens):
            return replace(UNCHANGED, allowed=only(self.tokens[len(answer) :][:1], vocab_size))
        return self.form.changes(answer[len(self.tokens) :], vocab_size) if self.form else UNCHANGED


@pytest.fixture(scope="module", params=DRAFTS)
def models(request, kernels_on, tmp_path_factory):
    """An engine with drafts, which runs ahead, and a plain one; the thoughts of their answers."""
    folder = tmp_path_factory.mktemp("thoughts")
    ids = qwen_like_folder(folder / "m", DRAFTS[request.param])
    qwen_like_folder(folder / "d", DENSE.replace("seed=3", "seed=4"))
    speculate = f"draft:{folder / 'd'}" if request.param == "draft" else request.param
    with LLM(str(folder / "m"), speculate=speculate) as llm, LLM(str(folder / "m")) as plain:
        yield llm, plain, ids


def asked(seed, ids):
    """A prompt that opens its thoughts or a model that does, and any sampling."""
    rng = random.Random(seed)
    is_open = rng.random() < 0.7
    kinds = {"temperature": (0, 0.7, 2.0), "top_p": (1, 0.9), "logprobs": (None, 1), "min_tokens": (0, 40)}
    kinds |= {"frequency_penalty": (0, 0.5), "stop": ((), ("a",)), "ignore_eos": (True, False)}
    kinds |= {"thinking_budget": (1024,) if seed % 7 == 0 else (0, 16, 16, 50)}
    kinds |= {"structured_outputs": (None, FORM) if is_open else (None,)}
    drawn = {name: rng.choice(values) for name, values in kinds.items()}
    sampling = SamplingParams(seed=seed, is_thinking=is_open, **drawn)
    sampling = replace(sampling, max_tokens=(sampling.thinking_budget or 0) + 48)
    words = [rng.choice(b"abc\n") for _ in range(rng.randint(1, 40))]
    opened = [ids["<think>"], *b"\n"]
    if is_open:
        return Prompt([*words, *opened], sampling)
    return Prompt(words, sampling, processors=(Scripted(opened),))


def test_an_answer_is_that_of_a_thought_which_ended_by_itself(models):
    llm, plain, ids = models
    thoughts = Thoughts.of(llm.checkpoint.tokenizer)
    assert thoughts.close == (*b"\n", ids["</think>"], *b"\n\n")
    prompts = [asked(seed, ids) for seed in range(SEEDS)]
    num_closed = 0
    for prompt, done in zip(prompts, llm.generate(prompts), strict=True):
        sampling, tokens = prompt.sampling, done.token_ids
        own = replace(thoughts, is_open=bool(sampling.is_thinking))
        assert own.num_tokens(tokens) <= sampling.thinking_budget
        if ids["</think>"] not in tokens:
            assert sampling.structured_outputs is None, "the answer ended without its form"
            continue
        cut = tokens.index(ids["</think>"]) + 3
        is_closed = own.num_tokens(tokens) == sampling.thinking_budget
        num_closed += is_closed
        if is_closed or sampling.structured_outputs:
            assert tokens[cut - 3 : cut] == thoughts.close[1:]
        form = sampling.structured_outputs and plain._grammars.processor(sampling.structured_outputs)
        free = replace(sampling, thinking_budget=None, structured_outputs=None)
        (want,) = plain.generate([Prompt(prompt.content, free, processors=(Scripted(tokens[:cut], form),))])
        assert (tokens, done.text, done.finish_reason) == (want.token_ids, want.text, want.finish_reason)
    assert num_closed >= SEEDS // 2


def test_the_end_of_a_text_says_whether_its_thoughts_are_open(models):
    plain, opened, closed = models[1], "<think>\n", "<think>\n</think>\n\n"
    rows = {opened: True, closed: False, f"{closed}{'a' * 99}{opened}": True, opened + "a" * 99: False}
    for text, is_open in rows.items():
        for prompt in (text, plain.checkpoint.tokenizer.encode(text)):
            made = plain._with_grammar(Prompt(prompt, SamplingParams(thinking_budget=1)))
            [change] = [each.changes((*b"a",), 320) for each in made.processors]
            assert (change.allowed is not None) == is_open, text


def words(*whole):
    """A tokenizer in which each of `whole` is a token from 1000 on, and each other character its number."""
    places = {word: 1000 + place for place, word in enumerate(whole)}
    pattern = "|".join([*map(re.escape, whole), "(?s:.)"])
    encode = lambda text: [places.get(each) or ord(each) for each in re.findall(pattern, text)]  # noqa: E731
    return SimpleNamespace(encode=encode)


def test_thoughts_are_where_both_tokens_are():
    both, blanks = words("<think>", "</think>", "\n\n"), frozenset({*b"\n \t\r", 1002})
    for close in ("\n</think>\n\n", "x</think>"):
        want = Thoughts(1000, 1001, tuple(both.encode(close)), blanks)
        assert Thoughts.of(both, close) == want
    assert {Thoughts.of(both, close) for close in ("", "x", "<think>")} == {Thoughts()}
    parts = ((), ("<think>",), ("</think>",))
    assert {Thoughts.of(words(*some), "</think>") for some in parts} == {Thoughts()}


BASE = {"temperature": 1.0, "seed": 3, "max_tokens": 40}
STOPS = {"stop": ["e", "a", "b", "0", "1"]}
BOTH = [  # what a program asks for, and a server is asked for
    ({}, {}),
    (STOPS, STOPS),
    ({"thinking_budget": 12}, {"thinking_token_budget": 12}),
    ({"thinking_budget": 12} | STOPS, {"thinking_token_budget": 12} | STOPS),
    ({"structured_outputs": FORM}, {"guided_regex": FORM.regex}),
    (
        {"structured_outputs": FORM, "thinking_budget": 5},
        {"guided_regex": FORM.regex, "thinking_token_budget": 5},
    ),
]


@pytest.mark.parametrize("template", ["", "qwen3", "qwen3_6", "qwen3_vl"])
def test_a_program_gets_the_answer_of_a_server(template, kernels_on, tmp_path):
    """Stop strings and forms are for what comes behind thoughts, whoever asks."""
    qwen_like_folder(tmp_path / "m", "qwen3-shrunk,positions=2048", template)
    settings = ModelSettings(str(tmp_path / "m"))

    async def answers_of(sampling):
        async with AsyncLLM(settings.model) as llm:
            return [each async for each in llm.chat("say", sampling)]

    with LLM(settings.model) as llm, client_of(settings, ("m",)) as http:
        for own, fields in BOTH:
            sampling = SamplingParams(**BASE | own | {"stop": tuple(own.get("stop", ()))})
            body = {
                "messages": [{"role": "user", "content": "say"}],
                "enable_thinking": "thinking_budget" in own,
            }
            answer = http.post("/v1/chat/completions", json=BASE | body | fields).json()
            (choice,) = answer["choices"]
            outputs = asyncio.run(answers_of(sampling))
            (done,) = llm.chat(["say"], sampling)
            assert "".join(each.text for each in outputs) == done.text, own
            assert done.text.strip().endswith(choice["message"]["content"].strip()), own
            assert len(done.token_ids) == answer["usage"]["completion_tokens"], own
            assert done.finish_reason == choice["finish_reason"], own


def test_a_budget_without_thoughts():
    with LLM("default") as llm, pytest.raises(UserError, match="no tokens <think>"):
        llm.generate("hi", SamplingParams(thinking_budget=3))
    for wrong in ({"thinking_budget": -1}, {"thinking_budget": 1.5}, {"thinking_close": "</think></think>"}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            SamplingParams(**wrong)
