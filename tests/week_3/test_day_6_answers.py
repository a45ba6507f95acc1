"""Day 3.4: many prompts through the engine, with events and arrivals; and how likely each token was."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.probe import ScheduleProbe
from tests.helpers.serving import logprobs_of, make_engine, mixed_prompts
from tests.helpers.tolerance import F32_MODEL, as_float64, assert_close
from tests.helpers.toy import VOCAB, ByteTokenizer, random_array, random_tokens, toy_model

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


@pytest.fixture(scope="module")
def model(llm):
    return toy_model(llm)


def words(completions):
    return [(c.prompt_idx, c.token_ids, c.text, c.finish_reason, c.num_prompt_tokens) for c in completions]


@pytest.mark.task("3.6.5")
def test_the_same_completions_as_batch_generate(llm, model, monkeypatch):
    prompts = [replace(prompt, arrival_s=(7 * i) % 5) for i, prompt in enumerate(mixed_prompts())]
    clock = FakeClock(tick=0.05)
    clock.take_over(monkeypatch, llm.PromptRun)
    engine = make_engine(llm, model, SchedulerConfig(max_num_batched_tokens=64), clock=clock)
    done = engine.generate(prompts)
    wanted = llm.batch_generate(model, ByteTokenizer(), mixed_prompts(), batch_size=2)
    assert words(done) == words(wanted)
    assert not engine.has_requests
    assert engine.scheduler.pool.num_free == 256


@pytest.mark.task("3.6.5")
def test_text_and_token_ids_are_prompts_as_well(llm, model):
    [completion] = make_engine(llm, model).generate([Prompt("ab", FOREVER)])
    [same] = make_engine(llm, model).generate([Prompt([97, 98], FOREVER)])
    assert completion.token_ids == same.token_ids
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=16))
    assert [c.num_prompt_tokens for c in engine.generate(["ab", [97]])] == [2, 1]
    assert engine.generate([]) == []
    with pytest.raises(UserError, match="list of prompts"):
        engine.generate("ab")


@pytest.mark.task("3.6.5")
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


@pytest.mark.task("3.6.5")
def test_chunks_that_are_computed_again_are_not_told_again(llm, model):
    told = {i: [] for i in range(4)}

    def note(event):
        if isinstance(event, PrefillEvent):
            told[event.prompt_idx].append(event.num_computed_tokens)

    prompts = [Prompt(random_tokens(i, 30).tolist(), replace(FOREVER, max_tokens=60)) for i in told]
    # Twelve blocks hold two answers of 90 tokens, and eight tokens a step never a whole prompt.
    small = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4)
    engine = make_engine(llm, model, small, num_blocks=12, block_size=16, enable_prefix_caching=False)
    probe = ScheduleProbe(engine.scheduler)
    engine.generate(prompts, note)
    assert probe.preempted, "or nothing is computed again"
    for chunks in told.values():
        assert chunks == sorted(set(chunks)) and chunks[-1] == 30


@pytest.mark.task("3.6.5")
def test_waiting_counts_from_the_arrival(llm, model):
    engine = make_engine(llm, model, clock=FakeClock(tick=0.05))
    prompts = [Prompt([97], FOREVER, arrival_s=0.01 * i) for i in range(3)]
    arrivals = [completion.timing.arrival_s for completion in engine.generate(prompts)]
    assert np.diff(arrivals) == pytest.approx([0.01, 0.01]), "however late its turn came"


@pytest.mark.task("3.6.5")
def test_nobody_starts_before_arriving(llm, model, monkeypatch):
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


@pytest.mark.task("3.6.5")
def test_urgent_prompts_come_first_with_policy_priority(llm, model):
    ends = []
    engine = make_engine(llm, model, SchedulerConfig(policy="priority", max_num_seqs=1))
    prompts = [Prompt([97 + i], FOREVER, priority=priority) for i, priority in enumerate((5, 3, 1))]
    engine.generate(
        prompts, lambda e: ends.append(e.completion.prompt_idx) if isinstance(e, DoneEvent) else 0
    )
    assert ends == [2, 1, 0]


@pytest.mark.task("3.6.5")
def test_prompts_of_batch_class_come_last(llm, model):
    ends = []
    engine = make_engine(llm, model, SchedulerConfig(max_num_seqs=1))
    prompts = [
        Prompt([97 + i], FOREVER, priority_class="batch" if i < 2 else "interactive") for i in range(3)
    ]
    engine.generate(
        prompts, lambda e: ends.append(e.completion.prompt_idx) if isinstance(e, DoneEvent) else 0
    )
    assert ends == [2, 0, 1]


@pytest.mark.task("3.6.5")
def test_a_bad_prompt_ends_alone(llm, model):
    events = []
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=50))
    bad = Prompt([97] * 51, FOREVER)
    done = engine.generate([Prompt([97], FOREVER), bad, Prompt("", FOREVER)], events.append)
    assert [completion.finish_reason for completion in done] == ["length", "error", "error"]
    assert "50" in done[1].error and "empty" in done[2].error
    assert sum(isinstance(event, DoneEvent) for event in events) == 3
    assert [c.prompt_idx for c in engine.generate([bad, Prompt([97], FOREVER)])] == [0, 1], "from 0 again"


@pytest.mark.task("3.6.5")
def test_an_interrupt_leaves_nobody_behind(llm, model):
    def interrupt(event):
        if isinstance(event, TokenEvent):
            raise KeyboardInterrupt

    engine = make_engine(llm, model)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([Prompt([97], FOREVER), Prompt([98], FOREVER)], interrupt)
    assert not engine.has_requests
    assert engine.scheduler.pool.num_free == 256
    engine.add("another", [97])
    with pytest.raises(ValueError, match="requests"):
        engine.generate([[97]])


# How likely each token was


def scores_in_float64(model, tokens):
    logits = as_float64(model(mx.array([tokens]))[0])
    return (
        logits
        - np.log(np.sum(np.exp(logits - logits.max(-1, keepdims=True)), -1, keepdims=True))
        - (logits.max(-1, keepdims=True))
    )


@pytest.mark.task("3.6.6")
@pytest.mark.parametrize("num_top", [0, 1, 20])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_logarithms_of_the_softmax(llm, num_top, dtype):
    logits = random_array(1, 3, 100, dtype=dtype) * 8
    tokens = mx.array([5, 99, 0])
    read = llm.read_logprobs([5, 99, 0], llm.score_tokens(logits, tokens, num_top))
    x = as_float64(logits)
    want = x - np.log(np.exp(x).sum(-1, keepdims=True))
    assert_close([each.logprob for each in read], want[[0, 1, 2], [5, 99, 0]])
    for row, each in zip(want, read, strict=True):
        best = np.argsort(-row, kind="stable")[:num_top]
        assert [token for token, _ in each.top] == best.tolist(), "the likeliest, best first"
        assert_close([logprob for _, logprob in each.top], row[best])


@pytest.mark.task("3.6.6")
def test_large_logits_and_more_than_there_are(llm):
    [read] = llm.read_logprobs([1], llm.score_tokens(mx.array([[1e4, 1e4, -1e4]]), mx.array([1]), 20))
    assert_close(read.logprob, np.log(0.5))
    assert [token for token, _ in read.top] == [0, 1, 2], "of two equally likely ones the lower number first"
    assert_close(read.top[2][1], -20000 + np.log(0.5))


@pytest.mark.task("3.6.6")
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 5, "seed": 3}])
def test_an_answer_with_its_logprobs(llm, model, settings):
    prompt = Prompt(random_tokens(3, 40).tolist(), replace(FOREVER, max_tokens=8, logprobs=4, **settings))
    found = logprobs_of(make_engine(llm, model), prompt)
    answer = [each.token_id for each in found]
    want = scores_in_float64(model, [*prompt.content, *answer])[39:-1]
    assert_close([each.logprob for each in found], want[range(8), answer], F32_MODEL)
    for row, each in zip(want, found, strict=True):
        assert_close([logprob for _, logprob in each.top], np.sort(row)[::-1][:4], F32_MODEL)
        assert_close([logprob for _, logprob in each.top], row[[token for token, _ in each.top]], F32_MODEL)


@pytest.mark.task("3.6.6")
def test_neighbours_and_chunks_change_nothing(llm, model):
    prompt = Prompt(random_tokens(3, 90).tolist(), replace(FOREVER, max_tokens=8, logprobs=2))
    alone = logprobs_of(make_engine(llm, model), prompt)
    config = SchedulerConfig(max_num_batched_tokens=37, max_num_seqs=8)
    among = logprobs_of(make_engine(llm, model, config), prompt, mixed_prompts()[:4])
    assert [each.token_id for each in among] == [each.token_id for each in alone]
    assert_close([each.logprob for each in among], [each.logprob for each in alone], F32_MODEL)
    assert [[t for t, _ in each.top] for each in among] == [[t for t, _ in each.top] for each in alone]


@pytest.mark.task("3.6.6")
def test_only_what_was_asked_for_and_only_what_is_shown(llm, model):
    engine = make_engine(llm, model)
    engine.add("plain", [97], FOREVER)
    assert engine.step()[0].logprobs == ()
    engine.abort("plain")
    logits, drawn = random_array(1, 2, VOCAB), mx.array([98, 99])
    for asked, wanted in ((0, [(98, ())]), (None, [])):
        sampling = replace(FOREVER, max_tokens=1, logprobs=asked)
        answer = llm.Answer(ByteTokenizer(), [97], sampling, 64, arrival_s=0.0, clock=lambda: 0.0)
        request = llm.RequestState(llm.TokenSequence("r", [97]), answer)
        scores = request.score(logits, drawn)
        assert bool(scores) == bool(wanted), "scores are for requests that ask"
        request.accept([98, 99], scores)
        found = request.output().logprobs
        assert [(each.token_id, each.top) for each in found] == wanted, "the second was cut off"
