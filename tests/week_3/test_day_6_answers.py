"""Day 3.6: many prompts through the engine, with events and arrivals."""

from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.probe import ScheduleProbe
from tests.helpers.serving import make_engine, mixed_prompts
from tests.helpers.toy import ByteTokenizer, random_tokens

from tiny_llm_lab.types import (
    DoneEvent,
    PrefillEvent,
    Prompt,
    SamplingParams,
    SchedulerConfig,
    TokenEvent,
    UserError,
)

FOREVER = SamplingParams(max_tokens=3, ignore_eos=True)


def words(completions):
    return [(c.prompt_idx, c.token_ids, c.text, c.finish_reason, c.num_prompt_tokens) for c in completions]


@pytest.mark.task("3.6.6")
def test_the_same_completions_as_batch_generate(llm, model, monkeypatch):
    prompts = [replace(prompt, arrival_s=(7 * i) % 5) for i, prompt in enumerate(mixed_prompts())]
    clock = FakeClock(tick=0.05)
    clock.take_over(monkeypatch, llm.PromptRun)
    engine = make_engine(llm, model, SchedulerConfig(max_num_batched_tokens=64), clock=clock)
    done = engine.generate(prompts)
    wanted = llm.batch_generate(model, ByteTokenizer(), mixed_prompts(), batch_size=2)
    assert words(done) == words(wanted)
    assert not engine.has_requests
    assert engine.core.scheduler.pool.num_free == 256


@pytest.mark.task("3.6.6")
def test_text_and_token_ids_are_prompts_as_well(llm, model):
    [completion] = make_engine(llm, model).generate([Prompt("ab", FOREVER)])
    [same] = make_engine(llm, model).generate([Prompt([97, 98], FOREVER)])
    assert completion.token_ids == same.token_ids
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=16))
    assert [c.num_prompt_tokens for c in engine.generate(["ab", [97]])] == [2, 1]
    assert engine.generate([]) == []
    with pytest.raises(UserError, match="list of prompts"):
        engine.generate("ab")


@pytest.mark.task("3.6.6")
def test_events_tell_of_chunks_tokens_and_ends(llm, model):
    events = []
    engine = make_engine(llm, model, SchedulerConfig(max_num_batched_tokens=64))
    prompts = [Prompt([97], FOREVER), Prompt(random_tokens(1, 100).tolist(), replace(FOREVER, max_tokens=1))]
    done = engine.generate(prompts, events.append)

    def told(idx):
        for event in events:
            if isinstance(event, DoneEvent):
                if event.completion.prompt_idx == idx:
                    yield "done"
            elif event.prompt_idx == idx:
                is_chunk = isinstance(event, PrefillEvent)
                yield (event.num_computed_tokens, event.num_prompt_tokens) if is_chunk else "token"

    assert list(told(0)) == [(1, 1), "token", "token", "token", "done"]
    assert list(told(1)) == [(63, 100), (100, 100), "token", "done"]
    ends = [event.completion for event in events if isinstance(event, DoneEvent)]
    assert sorted(ends, key=lambda completion: completion.prompt_idx) == done
    times = [event.time_s for event in events if not isinstance(event, DoneEvent)]
    assert len(times) == 7
    texts = [event.text for event in events if isinstance(event, TokenEvent) and event.prompt_idx == 0]
    assert "".join(texts) == done[0].text


@pytest.mark.task("3.6.6")
def test_chunks_that_are_computed_again_are_not_told_again(llm, model):
    told = {i: [] for i in range(4)}

    def note(event):
        if isinstance(event, PrefillEvent):
            told[event.prompt_idx].append(event.num_computed_tokens)

    prompts = [Prompt(random_tokens(i, 30).tolist(), replace(FOREVER, max_tokens=60)) for i in told]
    # Twelve blocks hold two answers of 90 tokens, and eight tokens a step never a whole prompt.
    small = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4)
    engine = make_engine(llm, model, small, num_blocks=12, block_size=16, enable_prefix_caching=False)
    probe = ScheduleProbe(engine.core.scheduler)
    engine.generate(prompts, note)
    assert probe.preempted, "or nothing is computed again"
    for chunks in told.values():
        assert chunks == sorted(set(chunks)) and chunks[-1] == 30


@pytest.mark.task("3.6.6")
def test_waiting_counts_from_the_arrival(llm, model):
    engine = make_engine(llm, model, clock=FakeClock(tick=0.05))
    prompts = [Prompt([97], FOREVER, arrival_s=0.01 * i) for i in range(3)]
    arrivals = [completion.timing.arrival_s for completion in engine.generate(prompts)]
    assert np.diff(arrivals) == pytest.approx([0.01, 0.01]), "however late its turn came"


@pytest.mark.task("3.6.6")
def test_no_request_starts_before_arriving(llm, model, monkeypatch):
    clock, events = FakeClock(tick=0.001), []
    clock.take_over(monkeypatch, llm.PromptRun)
    engine = make_engine(llm, model, clock=clock)
    prompts = [Prompt([97], FOREVER, arrival_s=9.0), Prompt([98], FOREVER, arrival_s=2.0)]
    late, early = engine.generate(prompts, events.append)
    assert [event.prompt_idx for event in events if isinstance(event, PrefillEvent)] == [1, 0]
    assert clock.naps and max(clock.naps) <= 0.1, "short naps: an interrupt must not wait"
    for completion, arrival_s in ((early, 2.0), (late, 9.0)):
        assert completion.timing.arrival_s == pytest.approx(arrival_s, abs=0.01)
        assert 0 < completion.timing.ttft_s < 1


@pytest.mark.task("3.6.6")
@pytest.mark.parametrize(
    ("policy", "order", "settings"),
    [
        ("priority", [2, 1, 0], [{"priority": each} for each in (5, 3, 1)]),
        ("fcfs", [2, 0, 1], [{"priority_class": each} for each in ("batch", "batch", "interactive")]),
    ],
    ids=["urgent first", "batch class last"],
)
def test_the_order_of_prompts(llm, model, policy, order, settings):
    ends = []
    engine = make_engine(llm, model, SchedulerConfig(policy=policy, max_num_seqs=1))
    prompts = [Prompt([97 + i], FOREVER, **each) for i, each in enumerate(settings)]
    engine.generate(
        prompts, lambda e: ends.append(e.completion.prompt_idx) if isinstance(e, DoneEvent) else 0
    )
    assert ends == order


@pytest.mark.task("3.6.6")
def test_an_interrupt_leaves_no_request_behind(llm, model):
    def interrupt(event):
        if isinstance(event, TokenEvent):
            raise KeyboardInterrupt

    engine = make_engine(llm, model)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([Prompt([97], FOREVER), Prompt([98], FOREVER)], interrupt)
    assert not engine.has_requests
    assert engine.core.scheduler.pool.num_free == 256
    engine.add("another", [97])
    with pytest.raises(ValueError):
        engine.generate([[97]])
