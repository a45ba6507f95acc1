"""Day 3.6: many prompts through the engine, with events and arrivals."""

from dataclasses import replace

import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.serving import LONG, four_prompts, idx_of, make_engine, mixed_prompts
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


# What `on_event` may do to the engine that calls it


ONE_AT_A_TIME = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=1)
BOTH_WAYS = pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.task("3.6.6")),
        pytest.param({"async_scheduling": True}, marks=pytest.mark.task("3.7.2")),
    ],
)


class Listener:
    """Keeps all events; `act(event)` runs the first time that `when(event)` holds."""

    def __init__(self, when, act):
        self.when, self.act, self.events, self.has_acted = when, act, [], False

    def __call__(self, event):
        assert len(self.events) < 2000, "does this run ever end?"
        self.events.append(event)
        if not self.has_acted and self.when(event):
            self.has_acted = True
            self.act(event)

    def ends(self):
        return [idx_of(event) for event in self.events if isinstance(event, DoneEvent)]

    def tokens(self, idx):
        told = [event for event in self.events if isinstance(event, TokenEvent) and idx_of(event) == idx]
        return [event.token_id for event in told if event.token_id is not None]


def token_of(idx, count=1):
    """Whether an event is the `count`-th token of a prompt."""
    seen = []

    def is_it(event):
        if isinstance(event, TokenEvent) and idx_of(event) == idx:
            seen.append(event)
        return len(seen) == count

    return is_it


def run_with(engine, prompts, when, act):
    listener = Listener(when, lambda event: act(engine))
    done = engine.generate(prompts, listener)
    assert listener.has_acted
    assert [each.prompt_idx for each in done] == list(range(len(prompts))), "one completion for each prompt"
    assert sorted(idx for idx in listener.ends() if idx < len(prompts)) == list(range(len(prompts)))
    assert not engine.has_requests
    assert engine.core.scheduler.pool.num_free == engine.core.scheduler.pool.num_blocks
    engine.core.scheduler.check()
    return done, listener


# Abort


@BOTH_WAYS
@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_a_running_prompt_may_be_aborted(llm, model, wanted, settings, victim):
    engine = make_engine(llm, model, **settings)
    done, listener = run_with(engine, four_prompts(), token_of(1, 3), lambda e: e.abort(str(victim)))
    assert done[victim].finish_reason == "abort"
    # Requests of the same step may have their token already.
    assert len(done[victim].token_ids) == 3, "request 1 has 3 tokens, and all of a step get theirs"
    assert done[victim].token_ids == wanted[victim][:3]
    assert listener.tokens(victim) == list(done[victim].token_ids), "and no token is told behind the end"
    assert all(done[i].token_ids == wanted[i] for i in range(4) if i != victim)


@pytest.mark.task("3.6.6")
@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_waiting_prompt_may_be_aborted(llm, model, wanted, victim):
    engine = make_engine(llm, model, ONE_AT_A_TIME)
    done, listener = run_with(engine, four_prompts(), token_of(0, 2), lambda e: e.abort(str(victim)))
    assert (done[victim].finish_reason, done[victim].token_ids) == ("abort", ())
    assert done[victim].num_prompt_tokens == 12 + victim
    assert all(done[i].token_ids == wanted[i] for i in range(4) if i != victim)
    assert listener.ends()[0] == victim


@BOTH_WAYS
@pytest.mark.parametrize(("asker", "victim"), [(0, 1), (1, 0), (0, 0), (3, 2)])
def test_a_prompt_that_ends_in_the_same_step_keeps_its_answer(llm, model, wanted, settings, asker, victim):
    engine = make_engine(llm, model, **settings)
    done, _ = run_with(engine, four_prompts(), token_of(asker, 8), lambda e: e.abort(str(victim)))
    assert [each.finish_reason for each in done] == ["length"] * 4, "it has ended: there is nothing to abort"
    assert [each.token_ids for each in done] == wanted


# Add


@pytest.mark.task("3.6.6")
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1), (1, 0)])
def test_the_end_of_an_aborted_prompt_may_end_others(llm, model, victims):
    engine = make_engine(llm, model, ONE_AT_A_TIME)
    first, prompts = token_of(0, 2), four_prompts()[:3]
    listener = Listener(first, lambda event: engine.abort("2"))

    def chain(event):
        listener(event)
        if isinstance(event, DoneEvent) and idx_of(event) == 2:
            for victim in victims:
                engine.abort(str(victim))

    done = engine.generate(prompts, chain)
    reasons = ["abort" if i in (*victims, 2) else "length" for i in range(3)]
    assert [each.finish_reason for each in done] == reasons
    assert sorted(listener.ends()) == [0, 1, 2]


@BOTH_WAYS
@pytest.mark.parametrize("count", [1, 8])
def test_a_request_may_be_added(llm, model, wanted, settings, count):
    # With the eighth token everything that was there at first has ended.
    engine = make_engine(llm, model, **settings)
    extra = four_prompts()[2]
    done, listener = run_with(
        engine, four_prompts()[:2], token_of(1, count), lambda e: e.add("more", extra.content, extra.sampling)
    )
    assert [each.token_ids for each in done] == wanted[:2]
    (number,) = {idx_of(event) for event in listener.events} - {0, 1}
    assert number >= 2, "an added request has a number of its own, behind those of the prompts"
    assert listener.tokens(number) == list(wanted[2])
    mine = [type(event) for event in listener.events if idx_of(event) == number]
    assert mine[:9] == [PrefillEvent, *[TokenEvent] * 8] and mine[-1] is DoneEvent


@pytest.mark.task("3.6.6")
def test_an_added_request_does_not_take_the_number_of_a_prompt_to_come(llm, model, monkeypatch, wanted):
    clock = FakeClock(tick=0.001)
    clock.take_over(monkeypatch, llm.PromptRun)
    prompts = [replace(prompt, arrival_s=2.0 * i) for i, prompt in enumerate(four_prompts())]
    engine = make_engine(llm, model, clock=clock)
    done, listener = run_with(engine, prompts, token_of(0), lambda e: e.add("more", [97], LONG))
    assert [each.token_ids for each in done] == wanted
    assert len({idx_of(event) for event in listener.events}) == 5


@pytest.mark.task("3.6.6")
def test_the_run_sleeps_only_while_it_has_no_request(llm, model, monkeypatch):
    clock, naps = FakeClock(tick=0.001), []
    clock.take_over(monkeypatch, llm.PromptRun)
    prompts = [four_prompts()[0], replace(four_prompts()[1], arrival_s=2.0)]
    make_engine(llm, model, clock=clock).generate(prompts, lambda event: naps.append(len(clock.naps)))
    assert naps[:10] == [0] * 10, "a chunk, eight tokens and the end of the first prompt"
    assert naps[-1] > 0, "then the second one has not arrived"


@pytest.mark.task("3.6.6")
@pytest.mark.parametrize("kind", [TokenEvent, DoneEvent], ids=["beside a prompt", "after the last prompt"])
def test_an_added_request_that_is_aborted_has_an_end(llm, model, kind):
    engine, events = make_engine(llm, model), []
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)

    def on_event(event):
        events.append(event)
        if isinstance(event, kind) and sum(isinstance(each, kind) for each in events) == 1:
            engine.add("added", [98], sampling)
            engine.add("kept", [99], sampling)
            assert engine.abort("added")

    engine.generate([Prompt([97], sampling)], on_event)
    ends = [event.completion for event in events if isinstance(event, DoneEvent)]
    assert sorted(end.finish_reason for end in ends) == ["abort", "length", "length"], "each ends once"
    assert len({end.prompt_idx for end in ends}) == 3, "each has a number of its own"
