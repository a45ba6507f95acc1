"""A checkpoint's own draft layer: its drafts against float64, and answers that it never changes."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import hybrid_oracle
from tests.helpers.devices import on_cpu
from tests.helpers.hybrids import HYBRID, HYBRID_MOE, draft_weights, hybrid_weights
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.runtime.solution import load_solution
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import (
    AllDrafts,
    Checkpoint,
    Draft,
    DraftRequest,
    EngineOptions,
    Prompt,
    SamplingParams,
    SchedulerConfig,
    UserError,
)

llm = TaskNames(load_solution("ref"))
CONFIGS = {"dense": HYBRID, "experts": HYBRID_MOE}


class Recorded:
    """A proposer that keeps what it drafted after which text."""

    def __init__(self, proposer):
        self.proposer = proposer
        self.drafts = []

    def __getattr__(self, name):
        return getattr(self.proposer, name)

    def propose(self, asked):
        drafts = self.proposer.propose(asked)
        self.drafts += [
            (each.sequence.token_ids, draft.token_ids) for each, draft in zip(asked, drafts, strict=True)
        ]
        return drafts


def weights_of(config):
    return hybrid_weights(config) | draft_weights(config)


def model_of(config, kernels):
    weights = weights_of(config)
    checkpoint = Checkpoint("toy", Path("toy"), config, weights, ByteTokenizer(), mx.float32)
    with on_cpu(kernels):
        return llm.MtpModel(llm.build_model(checkpoint), weights)


def prompts(temperature):
    return [
        Prompt(
            [(7 * i + 5 * j * j) % 200 for j in range(length)],
            SamplingParams(max_tokens=12, ignore_eos=True, temperature=temperature, seed=i),
        )
        for i, length in enumerate((17, 1, 70, 3, 33))
    ]


def answers(model, asked, config, **options):
    engine = llm.Engine(model, ByteTokenizer(), config, EngineOptions(**({"num_blocks": 64} | options)))
    done = [each.token_ids for each in engine.generate(asked)]
    if (stats := engine.core.spec_stats) is not None:
        assert stats.num_draft_tokens > 20
    return done


SETTINGS = {
    "together": {"max_num_batched_tokens": 200, "max_num_seqs": 8},
    "small steps": {"max_num_batched_tokens": 9, "max_num_seqs": 3},
}


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    ("name", "kernels"), [("dense", "cpp"), ("dense", "off"), ("experts", "cpp"), ("dense", "mlx")]
)
def test_a_draft_is_what_the_layer_says_of_the_whole_text(name, kernels, settings, num_tokens):
    """In float64 from the whole text; of nearly tied tokens either may be drafted."""
    config = CONFIGS[name]
    model = model_of(config, kernels)
    proposer = llm.MtpProposer(model, num_tokens)
    recorded, off = Recorded(proposer), {"enable_prefix_caching": False}
    with on_cpu(kernels):
        want = answers(model, prompts(0), SchedulerConfig(**settings), **off)
        got = answers(model, prompts(0), SchedulerConfig(**settings), proposer=recorded, **off)
    assert got == want
    checked = 0
    for text, draft in recorded.drafts[::2]:
        if not draft:
            continue
        logits = hybrid_oracle.draft_logits(config, weights_of(config), np.array([text]), draft[:-1])
        for i, row in enumerate(logits[0, -len(draft) :]):
            assert row[draft[i]] > row.max() - 1e-3, f"after {text}: {draft}, of which token {i} is wrong"
        checked += 1
    assert checked > 2
    if num_tokens > 1:
        assert max(len(draft) for _, draft in recorded.drafts) == num_tokens


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("block_size", [4, 16])
def test_answers_are_those_without_drafts(temperature, block_size):
    """To the bit on the C++ kernels, with prefix hits, preemption and 8 bits of keys and values too."""
    model = model_of(HYBRID, "cpp")
    asked = prompts(temperature) + prompts(temperature)
    config = SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=5)
    shape = {"num_blocks": 160 // block_size, "block_size": block_size, "kv_bits": 8}
    want = [answers(model, [each], SchedulerConfig(), kv_bits=8)[0] for each in asked]
    for num_tokens in (1, 4):
        proposer = llm.MtpProposer(model, num_tokens)
        assert answers(model, asked, config, **shape, proposer=proposer) == want


class Switched(AllDrafts):
    """A gate that lets drafts through once it is open."""

    is_open = False

    def length(self, request_id, most):
        return most if self.is_open else 0


@pytest.mark.parametrize("lengths", [(5,), (5, 9), (1,), (33, 1, 2)], ids=str)
@pytest.mark.parametrize("end", ["stop", "abort"])
def test_a_step_that_was_dropped_in_flight_is_not_taken_for_the_next(end, lengths):
    """Requests end by a token, or from outside, while their next step runs: nobody waits for it any more."""
    model, config = model_of(HYBRID, "cpp"), SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=4)
    texts = [[(11 * i + length) % 200 for i in range(length)] for length in lengths]
    (known,) = answers(model, [Prompt(texts[0], SamplingParams(max_tokens=8, ignore_eos=True))], config)
    last, drafted = known[3] if end == "stop" else None, []
    for is_first in (False, True):
        recorded, gate = Recorded(llm.MtpProposer(model, 2)), Switched()
        options = {"proposer": recorded, "draft_gate": gate, "enable_prefix_caching": False}
        options = EngineOptions(num_blocks=64, async_scheduling=True, **options)
        engine = llm.Engine(model, ByteTokenizer(), config, options)
        if not is_first:  # somebody else was served before
            stop = SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=(last,) if last else ())
            engine.add("before", texts[0], stop)
            while engine.has_requests:
                engine.step()
                if end == "abort" and engine.core._inflight:
                    engine.abort("before")
        for i, text in enumerate(texts):
            engine.add(str(i), text, SamplingParams(max_tokens=12, ignore_eos=True))
        while engine.has_requests:
            gate.is_open = len(engine.core.scheduler.running) == len(texts)
            engine.step()
        assert recorded.drafts
        drafted.append(recorded.drafts)
    assert drafted[0] == drafted[1]


def test_a_text_that_the_layer_has_not_seen_gets_no_draft():
    proposer = llm.MtpProposer(model_of(HYBRID, "cpp"), 1)
    proposer.create_cache(4, 16)
    drafter = llm.Drafter(llm.Sampler(SamplingParams()))
    unseen = llm.TokenSequence("r", [1, 2, 3], block_ids=[0])
    assert proposer.propose([DraftRequest(unseen, 1, drafter)]) == [Draft()]
    proposer.forget("unknown")
    with pytest.raises(UserError, match="num_tokens"):
        llm.MtpProposer(model_of(HYBRID, "cpp"), 0)
