"""Day 2.7: the phases and the loop with all of a run drawn."""

import pytest
from tests.helpers.any_batch import AnyBatch
from tests.helpers.fakes import FakeClock, FakeModel, live_requests
from tests.helpers.phases import TOKENIZER, limited, run_all, run_phases, text_of

from tiny_llm_lab.types import BatchSettings


@pytest.mark.task("2.7.4")
@pytest.mark.parametrize("seed", range(30))
def test_any_run_of_the_phases(llm, seed):
    AnyBatch(seed).run(run_phases, llm)


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("seed", range(30))
def test_any_run_of_the_loop(llm, seed):
    AnyBatch(seed).run(run_all, llm)


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("seed", range(20))
def test_memory_is_given_back_whichever_callback_fails(llm, seed):
    AnyBatch(seed).run(run_all, llm, fails_at=1 + 2 * seed)


@pytest.mark.task("2.7.4")
def test_prefill_phase_computes_one_chunk(llm):
    model = FakeModel()
    run = llm.BatchGenerator(
        model, TOKENIZER, [limited(text_of(10), 3)], BatchSettings(clock=FakeClock(), prefill_step=4)
    )
    for offset in (4, 8, 10):
        assert run.handle_prefill_phase() is True
        assert run.pending_prefill_request.offset == offset
        assert run.move_prefill_to_decode() is (offset == 10)
    assert run.pending_prefill_request is None
    assert len(run.request_queue) == 0
    assert [request.offset for request in run.decode_requests] == [10]
    assert [layer.offset for layer in run.kv_cache] == [[10], [10]]
    assert live_requests(model) == 0, (
        "the row of the batch has a copy: the request's own cache is to be released"
    )
    assert run.handle_prefill_phase() is False
    assert run.move_prefill_to_decode() is False
