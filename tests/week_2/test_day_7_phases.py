"""Day 2.7: one prefill phase."""

import pytest
from tests.helpers.fakes import FakeClock, FakeModel, live_requests
from tests.helpers.phases import TOKENIZER, limited, text_of
from tests.helpers.toy import EOS

from tiny_llm_lab.types import BatchSettings, Prompt


def settings_of(**settings):
    return BatchSettings(clock=FakeClock(), **settings)


@pytest.mark.task("2.7.4")
def test_prefill_phase_computes_one_chunk(llm):
    model = FakeModel()
    run = llm.BatchGenerator(model, TOKENIZER, [limited(text_of(10), 3)], settings_of(prefill_step=4))
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


@pytest.mark.task("2.7.4")
def test_prefill_phase_waits_for_a_free_slot(llm):
    model = FakeModel()
    prompts = [limited("a", 3), limited("b", 3)]
    run = llm.BatchGenerator(model, TOKENIZER, prompts, settings_of(batch_size=1))
    run.handle_prefill_phase()
    run.move_prefill_to_decode()
    assert run.handle_prefill_phase() is False
    assert run.pending_prefill_request is None
    run.handle_decode_phase()
    run.handle_decode_phase()
    assert run.decode_requests == []
    assert run.handle_prefill_phase() is True
    assert prompts == [limited("a", 3), limited("b", 3)], "the list of the caller stays as it was"


@pytest.mark.task("2.7.4")
def test_prefill_phase_waits_for_an_arrival(llm):
    clock = FakeClock(start=5.0)
    run = llm.BatchGenerator(
        FakeModel(), TOKENIZER, [Prompt("abc", arrival_s=2.0)], BatchSettings(clock=clock)
    )
    clock.now = 6.9
    assert run.handle_prefill_phase() is False
    clock.now = 7.1
    assert run.handle_prefill_phase() is True


@pytest.mark.task("2.7.4")
def test_request_that_ends_with_its_first_token_takes_no_row(llm):
    model = FakeModel({"abc": [EOS]})
    run = llm.BatchGenerator(model, TOKENIZER, ["abc"], settings_of())
    run.handle_prefill_phase()
    assert run.move_prefill_to_decode() is True
    assert (run.decode_requests, run.pending_prefill_request) == ([], None)
    assert [layer.offset for layer in run.kv_cache] == [[], []]
    assert not run.has_work_remaining()
    assert [completion.finish_reason for completion in run.collect_results()] == ["stop"]
    assert live_requests(model) == 0
