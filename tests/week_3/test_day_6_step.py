"""Day 3.6: one step by itself, and a request's tokens on their way to the user."""

from dataclasses import replace

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tests.helpers.core import make_core
from tests.helpers.fakes import FakeClock
from tests.helpers.fragile import BrokenError, Fragile
from tests.helpers.phases import arrival_of
from tests.helpers.toy import ByteTokenizer, random_tokens

from tiny_llm_lab.types import PrefillEvent, SamplingParams, SchedulerConfig, StepPlan, TokenEvent


def a_request(llm, prompt, sampling, max_seq_len=64):
    ticks = iter(range(10, 100))
    tokens = ByteTokenizer().encode(prompt) if isinstance(prompt, str) else prompt
    sequence = llm.TokenSequence("r", tokens, 2, 3.0, "batch")
    arrival = arrival_of(tokens, sampling, 4, 3.0)
    answer = llm.Answer(ByteTokenizer(), arrival, tokens, max_seq_len, lambda: float(next(ticks)))
    return llm.RequestState(sequence, answer)


def whole(step):
    """The slices of a step without states; their blocks may be any sequence."""
    return [(list(blocks), computed, new) for blocks, computed, new, *_ in step.slices]


def accepted(request, tokens):
    request.accept(tokens)
    return request.output()


@pytest.mark.task("3.6.1")
def test_tokens_reach_the_user_until_the_answer_ends(llm):
    request = a_request(llm, "ab", SamplingParams(max_tokens=3))
    assert not request.has_output
    request.accept([99])
    assert request.has_output
    output = request.output()
    assert not request.has_output
    assert (output.request_id, output.token_ids, output.text, output.completion) == ("r", (99,), "c", None)
    assert [type(event) for event in output.events] == [PrefillEvent, TokenEvent]
    assert request.answer.last_token_s == 11.0, "when the newest token came"
    output = accepted(request, [100, 101, 102])
    assert (output.token_ids, output.text) == ((100, 101), "de"), "max_tokens is 3: the rest is dropped"
    assert output.completion.finish_reason == "length"
    assert output.completion.timing.arrival_s == 3.0
    assert request.sequence.num_tokens == 2, "the scheduler's commit counts tokens, not this"


@pytest.mark.task("3.6.2")
def test_a_chunk_that_samples_nothing_is_computed_when_it_is_read(llm, model, monkeypatch):
    evaluated = []

    def noting(evaluate):
        def wrapped(*arrays):
            evaluated.extend(array for _, array in tree_flatten(arrays))
            return evaluate(*arrays)

        return wrapped

    request = a_request(llm, [97] * 9, SamplingParams())
    request.sequence.block_ids = [0, 1, 2]
    cache = model.create_paged_kv_cache(3, 4)
    for name in ("eval", "async_eval"):
        monkeypatch.setattr(mx, name, noting(getattr(mx, name)))
    assert llm.launch(model, cache, StepPlan({"r": 4}), [request], 0.0).read() == {}
    left = [i for i, pool in enumerate(cache.pools) if not any(pool is each for each in evaluated)]
    assert not left, f"nobody asked MLX to compute the pools {left}: their graph grows with every chunk"


@pytest.mark.task("3.6.2")
def test_a_step_of_no_request_does_not_run_the_model(llm, model):
    broken = Fragile(model)
    broken.error = BrokenError("no rows: a hybrid's states have nothing to run over")
    step = llm.launch(broken, model.create_paged_kv_cache(3, 4), StepPlan({}), [], 0.0)
    assert step.read() == {} and step.sampled.tolist() == []


@pytest.mark.parametrize(
    "logprobs",
    [
        pytest.param(None, marks=pytest.mark.task("3.6.2")),
        pytest.param(2, marks=pytest.mark.task("3.7.1")),
    ],
)
def test_a_step_by_itself(llm, model, logprobs):
    """A decode, a whole prompt and a chunk in one pass: who draws, and what."""
    greedy = SamplingParams(ignore_eos=True)
    drawn = SamplingParams(temperature=1.0, seed=5, logprobs=logprobs)
    prompts = {
        "decode": (3, replace(drawn, seed=6)),
        "whole": (7, drawn),
        "chunk": (9, greedy),
    }
    requests, wanted = [], {}
    for i, (name, (length, sampling)) in enumerate(prompts.items()):
        tokens = random_tokens(1 + i, length).tolist()
        request = a_request(llm, tokens, sampling)
        request.sequence.request_id, request.sequence.block_ids = name, [3 * i, 3 * i + 1, 3 * i + 2]
        requests.append(request)
        logits = model(mx.array([tokens]))[:, -1]
        wanted[name] = (llm.Sampler(sampling)(logits, length).tolist(), logits)
    cache = model.create_paged_kv_cache(9, 4)
    first = llm.launch(model, cache, StepPlan({"decode": 2}), requests[:1], 1.5)
    assert first.start_s == 1.5 and whole(first) == [([0, 1, 2], 0, 2)]
    assert first.read() == {} and first.sampled.tolist() == [], "a token is not computed yet"
    requests[0].sequence.advance(2)
    step = llm.launch(model, cache, StepPlan({"decode": 1, "whole": 7, "chunk": 4}), requests, 2.0)
    assert whole(step) == [([0, 1, 2], 2, 1), ([3, 4, 5], 0, 7), ([6, 7, 8], 0, 4)]
    got = step.read()
    assert got == {requests[0]: wanted["decode"][0], requests[1]: wanted["whole"][0]}
    if logprobs is None:
        return
    assert list(step.scores) == requests[:2], "who asked"
    for request, (tokens, logits) in zip(requests[:2], wanted.values(), strict=False):
        want = (logits - mx.logsumexp(logits, axis=-1, keepdims=True))[0, tokens[0]]
        assert step.scores[request][0].item() == pytest.approx(want.item(), abs=1e-4)


# What `on_step` sees of the engine's core


LONG = SamplingParams(max_tokens=12, ignore_eos=True)
TWO_AT_A_TIME = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=2)


class Steps:
    """An `on_step` that keeps what it is told, and the state of its core at that moment."""

    def __init__(self):
        self.plans, self.stats, self.states, self.core = [], [], [], None

    def __call__(self, plan, stats):
        self.plans.append(dict(plan.num_scheduled_tokens))
        self.stats.append(stats)
        scheduler = self.core.scheduler
        self.states.append((len(scheduler.running), len(scheduler.waiting), scheduler.pool.num_free))


def watched(llm, model, config=None, **settings):
    steps = Steps()
    steps.core = make_core(llm, model, config, on_step=steps, **settings)
    return steps.core, steps


@pytest.mark.task("3.6.4")
def test_on_step_sees_every_step_with_its_numbers(llm, model):
    core, steps = watched(llm, model, replace(TWO_AT_A_TIME, max_num_batched_tokens=16), clock=FakeClock(1.0))
    core.add("a", [97] * 20, replace(LONG, max_tokens=2))
    core.add("b", [98] * 3, replace(LONG, max_tokens=1))
    core.add("c", [99] * 3, replace(LONG, max_tokens=1))
    while core.has_requests:
        core.step()
    assert steps.plans == [{"a": 16}, {"a": 4, "b": 3}, {"a": 1, "c": 3}]
    got = [(each.num_running, each.num_waiting) for each in steps.stats]
    assert got == [(1, 2), (1, 1), (0, 0)], "(running, waiting) after each step"
    assert [each.num_prompt_tokens for each in steps.stats] == [16, 7, 3], "and decodes are none"
    assert [each.num_free_blocks for each in steps.stats] == [255, 254, 256], "free after each step"
    assert [
        (each.num_running, each.num_waiting, each.num_free_blocks) for each in steps.stats
    ] == steps.states, "the state after the step: ended requests have left"
    assert core.step() == []
    assert len(steps.plans) == 3, "without requests there is no step"


@pytest.mark.task("3.6.4")
def test_a_step_is_timed_from_its_plan_to_its_tokens(llm, model):
    clock = FakeClock()

    class Slow(Fragile):
        def __call__(self, *args, **kwargs):
            clock.now += 3.0
            return self.model(*args, **kwargs)

    core, steps = watched(llm, Slow(model), clock=clock)
    core.add("a", [97], replace(LONG, max_tokens=2))
    clock.now = 5.0
    core.step()
    clock.now = 10.0
    plan = core.scheduler.schedule

    def slowly(*given):
        clock.now += 1.0
        return plan(*given)

    core.scheduler.schedule = slowly
    core.step()
    got = [(each.start_s, each.end_s) for each in steps.stats]
    assert got == [(5.0, 8.0), (10.0, 14.0)], (
        "steps begin at 5 and 10 s, the model takes 3 s, and planning the second one a second"
    )


@pytest.mark.task("3.7.2")
@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt])
def test_a_step_ahead_of_one_that_failed_is_not_read(llm, model, error):
    fragile = Fragile(model)
    core, steps = watched(llm, fragile, async_scheduling=True)
    for name in ("a", "b"):
        core.add(name, [97, 98], LONG)
    core.step()
    fragile.error = error()
    with pytest.raises(error):
        core.step()
    fragile.error = None
    steps.plans.clear()
    core.add("next", [97], replace(LONG, max_tokens=1))
    assert [each.sequence.request_id for each in core.step()] == ["next"]
    assert steps.plans == [{"next": 1}]


@pytest.mark.task("3.7.2")
def test_on_step_sees_steps_that_were_launched_ahead(llm, model):
    def told(**settings):
        core, steps = watched(llm, model, **settings)
        core.add("a", [97, 98], replace(LONG, max_tokens=5))
        core.add("b", [99], replace(LONG, max_tokens=5))
        while core.has_requests:
            core.step()
        return steps

    usual, ahead = told(), told(async_scheduling=True)
    assert usual.plans == [{"a": 2, "b": 1}, *[{"a": 1, "b": 1}] * 4]
    assert ahead.plans == usual.plans
    assert [each.num_running for each in ahead.stats] == [2, 2, 2, 2, 0]
    starts, ends = zip(*((each.start_s, each.end_s) for each in ahead.stats), strict=True)
    assert all(later < end for later, end in zip(starts[1:4], ends[:3], strict=True)), "launched ahead"


@pytest.mark.task("3.6.4")
def test_a_failed_step_is_not_told(llm, model):
    fragile = Fragile(model)
    core, steps = watched(llm, fragile)
    core.add("a", [97], LONG)
    core.step()
    fragile.error = BrokenError()
    with pytest.raises(BrokenError):
        core.step()
    assert len(steps.plans) == 1
