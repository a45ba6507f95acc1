"""Day 3.6: a step of the engine's core, also one that fails while requests wait."""

import pytest
from tests.helpers.core import make_core
from tests.helpers.five_requests import LONG, TWO_AT_A_TIME, add_five, assert_new, prompt
from tests.helpers.fragile import BrokenError, Fragile
from tests.helpers.toy import ByteTokenizer, random_tokens

from tiny_llm_lab.types import PrefillEvent, Prompt, SchedulerConfig

pytestmark = pytest.mark.task("3.6.4")


def served(core, request):
    """The tokens of a request, once it has ended."""
    while not request.answer.is_done:
        core.step()
        core.scheduler.check()
    return tuple(request.answer.token_ids)


@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt])
def test_a_failed_step_ends_those_that_wait_as_well(llm, model, error):
    fragile = Fragile(model)
    core = make_core(llm, fragile, TWO_AT_A_TIME)
    old = core.scheduler
    add_five(core)
    fragile.error = error()
    with pytest.raises(error):
        core.step()
    fragile.error = None
    assert_new(core, old)
    assert not core.abort("r4"), "a request that waited is not known any more"
    prompts = [Prompt(prompt(i), LONG) for i in range(3)]
    wanted = llm.batch_generate(model, ByteTokenizer(), prompts)
    requests = [core.add(str(i), each.content, each.sampling) for i, each in enumerate(prompts)]
    assert [served(core, each) for each in requests] == [each.token_ids for each in wanted]


@pytest.mark.parametrize("place", ["commit", "schedule"])
def test_an_interrupt_in_the_accounting_leaves_nothing_half_done(llm, model, monkeypatch, place):
    core = make_core(llm, model, TWO_AT_A_TIME)
    old = core.scheduler
    add_five(core)
    work = getattr(old, place)

    def interrupted(*args):
        work(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(old, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        core.step()
    assert_new(core, old)
    [wanted] = llm.batch_generate(model, ByteTokenizer(), [Prompt([97] * 9, LONG)])
    assert served(core, core.add("next", [97] * 9, LONG)) == wanted.token_ids


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_prefix_is_computed_once(llm, model, is_enabled):
    core = make_core(llm, model, enable_prefix_caching=is_enabled)
    same = random_tokens(1, 70).tolist()
    first, second = (served(core, core.add(name, same, LONG)) for name in "ab")
    assert first == second
    if is_enabled:
        assert core.prefix_cache.num_hit_tokens == 64, "four blocks of the second prompt"


def test_a_token_of_an_aborted_request_does_not_go_to_a_new_one_with_its_id(llm, model):
    busy, new = Fragile(model), []
    core = make_core(llm, busy)
    stays = [core.add(name, prompt(i), LONG) for i, name in enumerate("ab")][1]
    core.step()

    def replaced_meanwhile(*args, **kwargs):
        core.abort("a")
        new.append(core.add("a", prompt(2), LONG))
        return model(*args, **kwargs)

    busy.model = replaced_meanwhile
    assert core.step() == [stays], "the new request was not in this step"
    busy.model = model
    [wanted] = llm.batch_generate(model, ByteTokenizer(), [Prompt(prompt(2), LONG)])
    assert served(core, new[0]) == wanted.token_ids


def test_each_chunk_of_a_prompt_is_reported_by_its_step(llm, model):
    core = make_core(llm, model, SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4))
    request = core.add("r", random_tokens(1, 40).tolist(), LONG)
    told = []
    for _ in range(3):
        core.step()
        events = request.answer.take_events()
        told.append([each.num_computed_tokens for each in events if isinstance(each, PrefillEvent)])
    assert told == [[16], [32], [40]], "a PrefillEvent after each chunk, not all with the first token"


def test_a_step_returns_the_requests_that_it_served(llm, model):
    core = make_core(llm, model, TWO_AT_A_TIME)
    requests = [core.add(f"r{i}", prompt(i), LONG) for i in range(3)]
    assert core.step() == requests[:2], "in order; the third waits"
    assert [len(each.answer.token_ids) for each in requests] == [1, 1, 0]
    while core.has_requests:
        core.step()
    assert [each.answer.finish_reason for each in requests] == ["length"] * 3
    assert core.scheduler.pool.num_free == 256, "ended requests hold no block"
    assert core.step() == [], "without requests nothing happens"
