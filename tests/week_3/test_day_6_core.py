"""Day 3.6: the engine's core when a step fails while others wait and draft, and what `on_step` sees."""

from dataclasses import replace

import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.serving import make_engine, serve
from tests.helpers.toy import ByteTokenizer, random_tokens, toy_model

from tiny_llm_lab.types import Draft, Prompt, SamplingParams, SchedulerConfig, UserError

LONG = SamplingParams(max_tokens=12, ignore_eos=True)
TWO_AT_A_TIME = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=2)


@pytest.fixture(scope="module")
def model(llm):
    return toy_model(llm)


class BrokenError(Exception):
    """The device is gone."""


class Fragile:
    """A model that raises `error` as soon as it is set; what is stored by then stays stored."""

    def __init__(self, model):
        self.model, self.config, self.error = model, model.config, None
        self.create_kv_cache = model.create_kv_cache
        self.create_paged_kv_cache = model.create_paged_kv_cache

    def __call__(self, *args, **kwargs):
        out = self.model(*args, **kwargs)
        if self.error is not None:
            raise self.error
        return out


class Repeater:
    """Drafts the last token again; remembers whom it drafted for, and who was forgotten."""

    def __init__(self, fails_for=()):
        self.known, self.forgotten, self.fails_for = set(), [], fails_for

    def propose(self, token_ids, request_id=None, sampler=None):
        self.known.add(request_id)
        return Draft((token_ids[-1],) * 3)

    def forget(self, request_id):
        self.forgotten.append(request_id)
        self.known.discard(request_id)
        if request_id in self.fails_for:
            raise LookupError(f"no draft of {request_id}")


def prompt(number):
    return random_tokens(number, 20).tolist()


def add_five(engine):
    """Two requests run, the other three wait."""
    for i in range(5):
        engine.add(f"r{i}", prompt(i), LONG)
    for _ in range(3):
        engine.step()
    assert (len(engine.scheduler.running), len(engine.scheduler.waiting)) == (2, 3)


def assert_new(engine, old_scheduler):
    assert not engine.has_requests
    assert engine.step() == [], "no request of before is served"
    assert (engine.scheduler.running, engine.scheduler.waiting) == ((), ())
    assert engine.scheduler is not old_scheduler, "its blocks may be half accounted for"
    pool = engine.scheduler.pool
    assert pool.num_free == pool.num_blocks
    for i in range(5):
        assert not any(map(engine.prefix_cache.find, engine.prefix_cache.keys(prompt(i)))), (
            "nor is any prefix"
        )
    assert engine.prefix_cache is engine.scheduler.prefix_cache
    engine.scheduler.check()


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt])
def test_a_failed_step_ends_those_that_wait_as_well(llm, model, error):
    fragile = Fragile(model)
    engine = make_engine(llm, fragile, TWO_AT_A_TIME)
    old = engine.scheduler
    add_five(engine)
    fragile.error = error()
    with pytest.raises(error):
        engine.step()
    fragile.error = None
    assert_new(engine, old)
    assert not engine.abort("r4"), "a request that waited is not known any more"
    prompts = [Prompt(prompt(i), LONG) for i in range(3)]
    wanted = llm.batch_generate(model, ByteTokenizer(), prompts)
    done = serve(engine, prompts)
    assert [done[i].token_ids for i in range(3)] == [each.token_ids for each in wanted]


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize("place", ["commit", "schedule"])
def test_an_interrupt_in_the_accounting_leaves_nothing_half_done(llm, model, monkeypatch, place):
    engine = make_engine(llm, model, TWO_AT_A_TIME)
    old = engine.scheduler
    add_five(engine)
    work = getattr(old, place)

    def interrupted(*args):
        work(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(old, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert_new(engine, old)
    [wanted] = llm.batch_generate(model, ByteTokenizer(), [Prompt([97] * 9, LONG)])
    assert serve(engine, [Prompt([97] * 9, LONG)])[0].token_ids == wanted.token_ids


@pytest.mark.task("3.6.3")
def test_a_failed_step_forgets_every_draft(llm, model):
    fragile, proposer = Fragile(model), Repeater()
    engine = make_engine(llm, fragile, TWO_AT_A_TIME, proposer=proposer)
    old = engine.scheduler
    add_five(engine)
    assert proposer.known == {"r0", "r1"}
    fragile.error = BrokenError()
    with pytest.raises(BrokenError):
        engine.step()
    assert_new(engine, old)
    assert proposer.known == set()


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize("fails_for", [("r0",), ("r1",), ("r0", "r1")])
def test_a_forget_that_raises_does_not_keep_the_rest_behind(llm, model, fails_for):
    fragile, proposer = Fragile(model), Repeater(fails_for)
    engine = make_engine(llm, fragile, TWO_AT_A_TIME, proposer=proposer)
    old = engine.scheduler
    add_five(engine)
    fragile.error = BrokenError()
    with pytest.raises((BrokenError, LookupError)):
        engine.step()
    assert proposer.known == set()
    fragile.error = None
    assert_new(engine, old)
    engine.add("next", [97], replace(LONG, max_tokens=1))
    assert [output.request_id for output in engine.step()] == ["next"]


@pytest.mark.task("3.6.3")
def test_a_request_that_ends_or_is_aborted_is_forgotten_by_the_proposer(llm, model):
    proposer = Repeater()
    engine = make_engine(llm, model, proposer=proposer)
    for name, max_tokens in (("ends", 9), ("aborted", 12), ("stays", 12)):
        engine.add(name, [97] * 5, replace(LONG, max_tokens=max_tokens))
    engine.step()
    engine.step()
    assert proposer.known == {"ends", "aborted", "stays"}
    engine.abort("aborted")
    assert proposer.known == {"ends", "stays"}
    while "ends" in proposer.known and engine.has_requests:
        ended = [output.request_id for output in engine.step() if output.completion]
        assert ("ends" in ended) == ("ends" not in proposer.known)
    assert "ends" not in proposer.known
    engine.release()
    assert proposer.known == set()


@pytest.mark.task("3.6.3")
def test_a_refused_request_changes_nothing(llm, model):
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=50), num_blocks=2)
    with pytest.raises(UserError):
        engine.add("bad", [97] * 40)
    assert not engine.has_requests
    assert not engine.abort("bad")


# What on_step sees


class Steps:
    """An `on_step` that keeps what it is told, and the state of its engine at that moment."""

    def __init__(self):
        self.plans, self.stats, self.states, self.engine = [], [], [], None

    def __call__(self, plan, stats):
        self.plans.append(dict(plan.num_scheduled_tokens))
        self.stats.append(stats)
        scheduler = self.engine.scheduler
        self.states.append((len(scheduler.running), len(scheduler.waiting), scheduler.pool.num_free))


def watched(llm, model, config=None, **settings):
    steps = Steps()
    steps.engine = make_engine(llm, model, config, on_step=steps, **settings)
    return steps.engine, steps


@pytest.mark.task("3.6.3")
def test_on_step_sees_every_step_with_its_numbers(llm, model):
    engine, steps = watched(
        llm, model, replace(TWO_AT_A_TIME, max_num_batched_tokens=16), clock=FakeClock(1.0)
    )
    engine.add("a", [97] * 20, replace(LONG, max_tokens=2))
    engine.add("b", [98] * 3, replace(LONG, max_tokens=1))
    engine.add("c", [99] * 3, replace(LONG, max_tokens=1))
    while engine.has_requests:
        engine.step()
    assert steps.plans == [{"a": 16}, {"a": 4, "b": 3}, {"a": 1, "c": 3}]
    assert [(each.num_running, each.num_waiting) for each in steps.stats] == [(1, 2), (1, 1), (0, 0)]
    assert [each.num_prompt_tokens for each in steps.stats] == [16, 7, 3], "and decodes are none"
    assert [each.num_free_blocks for each in steps.stats] == [255, 254, 256]
    assert [
        (each.num_running, each.num_waiting, each.num_free_blocks) for each in steps.stats
    ] == steps.states, "the state after the step: ended requests have left"
    assert engine.step() == []
    assert len(steps.plans) == 3, "without requests there is no step"


@pytest.mark.task("3.6.3")
def test_a_step_is_timed_from_its_plan_to_its_tokens(llm, model):
    clock = FakeClock()

    class Slow(Fragile):
        def __call__(self, *args, **kwargs):
            clock.now += 3.0
            return self.model(*args, **kwargs)

    engine, steps = watched(llm, Slow(model), clock=clock)
    engine.add("a", [97], replace(LONG, max_tokens=2))
    clock.now = 5.0
    engine.step()
    clock.now = 10.0
    engine.step()
    assert [(each.start_s, each.end_s) for each in steps.stats] == [(5.0, 8.0), (10.0, 13.0)]


@pytest.mark.task("3.6.7")
@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt])
def test_a_step_ahead_of_one_that_failed_is_not_read(llm, model, error):
    fragile = Fragile(model)
    engine, steps = watched(llm, fragile, async_scheduling=True)
    for name in ("a", "b"):
        engine.add(name, [97, 98], LONG)
    engine.step()
    fragile.error = error()
    with pytest.raises(error):
        engine.step()
    fragile.error = None
    steps.plans.clear()
    engine.add("next", [97], replace(LONG, max_tokens=1))
    assert [output.request_id for output in engine.step()] == ["next"]
    assert steps.plans == [{"next": 1}]


@pytest.mark.task("3.6.7")
def test_on_step_sees_steps_that_were_launched_ahead(llm, model):
    def told(**settings):
        engine, steps = watched(llm, model, **settings)
        engine.add("a", [97, 98], replace(LONG, max_tokens=5))
        engine.add("b", [99], replace(LONG, max_tokens=5))
        while engine.has_requests:
            engine.step()
        return steps

    usual, ahead = told(), told(async_scheduling=True)
    assert usual.plans == [{"a": 2, "b": 1}, *[{"a": 1, "b": 1}] * 4]
    assert ahead.plans == usual.plans
    assert [each.num_running for each in ahead.stats] == [2, 2, 2, 2, 0]
    starts, ends = zip(*((each.start_s, each.end_s) for each in ahead.stats), strict=True)
    assert all(later < end for later, end in zip(starts[1:4], ends[:3], strict=True)), "launched ahead"


@pytest.mark.task("3.6.3")
def test_a_failed_step_is_not_told(llm, model):
    fragile = Fragile(model)
    engine, steps = watched(llm, fragile)
    engine.add("a", [97], LONG)
    engine.step()
    fragile.error = BrokenError()
    with pytest.raises(BrokenError):
        engine.step()
    assert len(steps.plans) == 1


# A latency SLO


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(max_num_batched_tokens=512, chunk_grid=32),
        SchedulerConfig(max_num_batched_tokens=512, max_model_len=512, enable_chunked_prefill=False),
    ],
)
def test_a_latency_slo_needs_chunks_of_any_size(llm, model, config):
    with pytest.raises(UserError, match="chunk_grid to 0 and keep chunked prefill on"):
        make_engine(llm, model, config, budget_controller=object())
    assert make_engine(llm, model, config).budget_controller is None


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_prefix_cache_can_be_off(llm, model, is_enabled):
    engine = make_engine(llm, model, enable_prefix_caching=is_enabled)
    same = Prompt(random_tokens(1, 70).tolist(), LONG)
    first, second = (serve(engine, [same])[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert (engine.prefix_cache is not None) == is_enabled
    if is_enabled:
        assert engine.prefix_cache.num_hit_tokens == 64, "four blocks of the second prompt"


@pytest.mark.task("3.6.3")
def test_release_ends_requests_and_gives_everything_back(llm, model):
    engine = make_engine(llm, model, TWO_AT_A_TIME)
    add_five(engine)
    engine.release()
    assert not engine.has_requests
    assert engine.scheduler.pool.num_free == 256
    assert engine.kv_cache.nbytes == 0
