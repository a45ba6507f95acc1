"""Day 3.9: what a draft model reads: only what its drafts can pay for, and the rest when they can."""

import importlib
from dataclasses import replace

import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.passes import Passes
from tests.helpers.serving import LONG, make_engine
from tests.helpers.toy import random_tokens, toy_model

from tiny_llm_lab.types import AllDrafts, Prompt, SchedulerConfig

pytestmark = pytest.mark.task("3.9.7")
CONFIG = SchedulerConfig(max_num_batched_tokens=128, max_num_seqs=4)


def timed(llm, clock, part=1.0):
    """A model whose passes take 10 s and a second for each row, both times `part`."""
    return Passes(toy_model(llm), clock, lambda num_rows: part * (10 + num_rows))


def drafting(llm, part, gate):
    """An engine whose draft model takes this part of the model's time, and the draft model."""
    small = timed(llm, clock := FakeClock(), part)
    options = {"proposer": llm.DraftModelProposer(small, 4), "draft_gate": gate, "clock": clock}
    return make_engine(llm, timed(llm, clock), CONFIG, num_blocks=96, **options), small


def served(llm, part, length, is_wrong, max_tokens=80):
    """The time of a request for each of `is_wrong`, by that of one without drafts; and the draft model."""
    (engine, small), times = drafting(llm, part, llm.DraftGate()), []
    plain = make_engine(llm, timed(llm, FakeClock()), CONFIG, num_blocks=96)
    for i, wrong in enumerate(is_wrong):
        small.change = (lambda logits: -logits) if wrong else lambda logits: logits
        before_s, plain_clock = small.clock.now, plain.core.model.clock
        prompts = [Prompt(random_tokens(i, length).tolist(), replace(LONG, max_tokens=max_tokens))]
        done = engine.generate(prompts)
        if i < 3:  # all prompts have one length, and so take one time without drafts
            assert done[0].token_ids == plain.generate(prompts)[0].token_ids
        times.append((small.clock.now - before_s) / (plain_clock.now / min(i + 1, 3)))
    return times, small


@pytest.mark.parametrize(("part", "length"), [(1.0, 600), (0.7, 900), (0.5, 600)])
@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_draft_model_that_cannot_pay_costs_two_percent(llm, part, length, is_wrong):
    """Of what comes after a chunk, which tells how dear it is."""
    times, _ = served(llm, part, length, [is_wrong] * 3)
    assert max(times[1:]) <= 1.02


@pytest.mark.parametrize("length", [100, 600])
def test_a_cheap_one_reads_prompts_at_once(llm, length):
    times, small = served(llm, 0.05, length, [False] * 3)
    assert max(times) < 0.9 and sum(small.rows) > 3 * length and max(small.rows) <= 128


@pytest.mark.parametrize(("part", "is_read"), [(0.05, True), (0.2, False)])
def test_trust_is_in_the_model_s_time(llm, monkeypatch, part, is_read):
    """100 tokens of it are 1,800 of a cheap draft model, and 300 of a dear one."""
    monkeypatch.setattr(importlib.import_module(llm.Reading.__module__), "_TRUST", 100)
    _, small = served(llm, part, 900, [True])
    assert (sum(small.rows) > 900) is is_read


def test_reading_stops_where_nothing_is_accepted_and_begins_again(llm, monkeypatch):
    """A fifth of the model's time for each prompt is too much, if it never pays."""
    monkeypatch.setattr(importlib.import_module(llm.Reading.__module__), "_TRUST", 133)
    times, _ = served(llm, 0.2, 150, [*[True] * 10, *[False] * 7], max_tokens=40)
    assert min(times[:2]) > 1.05, "on trust"
    assert sum(times[3:10]) / 7 <= 1.02
    assert max(times[-3:]) < 0.9, "some prompt was read again, and then all"


def test_what_was_left_out_is_read_in_chunks(llm, monkeypatch):
    """Never more than the step leaves of its budget, however much it is."""
    monkeypatch.setattr(importlib.import_module(llm.Reading.__module__), "_TRUST", 0)
    engine, small = drafting(llm, 0.2, gate := AllDrafts())
    engine.add("a", random_tokens(1, 900).tolist(), replace(LONG, max_tokens=60))
    while engine.core.scheduler.waiting or not engine.core.scheduler.running[0].is_decoding:
        engine.step()
    assert len(small.rows) == 1, "one chunk, which tells what reading costs"
    gate.observe_draft = lambda *draft: 1000.0
    while engine.has_requests:
        engine.step()
    assert 500 < max(small.rows) <= 127 / 0.2 and sum(small.rows) > 900
    assert engine.core.spec_stats.num_accepted_tokens > 20
