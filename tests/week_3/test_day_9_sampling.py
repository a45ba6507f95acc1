"""Day 3.9: a seeded request draws the same tokens in steps with a draft and in steps without one."""

from itertools import cycle

import pytest
from tests.helpers.serving import make_engine, serve
from tests.helpers.toy import QWEN2, ByteTokenizer, toy_model

from tiny_llm_lab.types import DoneEvent, Prompt, SamplingParams

pytestmark = pytest.mark.task("3.9.6")

TOKENIZER = ByteTokenizer()
# Of these texts the toy model's answers repeat a part: sometimes there is something to look up.
TEXTS = ("abcabcabcabc", "the cat sat on the mat, the cat sat on", "x")
CUTS = [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 20, "top_p": 0.9, "min_p": 0.02}]


class Counted:
    """A proposer whose empty and other drafts are counted; two of three requests for one reach it."""

    def __init__(self, proposer):
        self.proposer, self.num_empty, self.num_drafts = proposer, 0, 0
        self.turns = cycle((True, False, True))

    def __getattr__(self, name):
        return getattr(self.proposer, name)

    def propose(self, asked):
        asked = [each if next(self.turns) else each._replace(num_tokens=0) for each in asked]
        drafts = self.proposer.propose(asked)
        self.num_empty += sum(not draft.token_ids for draft in drafts)
        self.num_drafts += sum(bool(draft.token_ids) for draft in drafts)
        return drafts


def proposer_of(llm, name, model):
    if name == "ngram":
        return Counted(llm.NgramProposer(2, 1, 4))
    drafting = model if name == "same model" else toy_model(llm, QWEN2, seed=1)
    return Counted(llm.DraftModelProposer(drafting, 3))


@pytest.fixture(scope="module")
def model(llm):
    return toy_model(llm, QWEN2)


def prompts_of(temperature, cuts):
    sampling = {"max_tokens": 16, "ignore_eos": True, "temperature": temperature} | cuts
    return [Prompt(text, SamplingParams(seed=seed, **sampling)) for seed, text in enumerate(TEXTS)]


def tokens_of(events):
    (done,) = [event.completion for event in events if isinstance(event, DoneEvent)]
    return done.token_ids


def alone(llm, model, prompt):
    return tokens_of(llm.stream_generate(model, TOKENIZER, prompt.content, prompt.sampling))


@pytest.mark.parametrize("name", ["ngram", "same model", "other model"])
@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.3])
@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: ", ".join(cuts) or "uncut")
def test_drafts_do_not_change_what_is_drawn(llm, model, name, temperature, cuts):
    prompts = prompts_of(temperature, cuts)
    want = [alone(llm, model, prompt) for prompt in prompts]
    in_loop, in_engine = (proposer_of(llm, name, model) for _ in range(2))
    loop = [
        tokens_of(llm.speculative_generate(model, TOKENIZER, each.content, in_loop, each.sampling))
        for each in prompts
    ]
    assert loop == want
    done = serve(make_engine(llm, model, proposer=in_engine), prompts, arrival_steps={1: 2, 2: 5})
    assert [done[i].token_ids for i in range(len(prompts))] == want
    for each in (in_loop, in_engine):
        assert each.num_drafts > 0 and each.num_empty > 0, "some steps draft and some do not"
