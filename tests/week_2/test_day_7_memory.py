"""Day 2.7: how many requests hold memory, and what a failure leaves of it."""

import mlx.core as mx
import pytest
from tests.helpers.fakes import FakeModel, live_requests
from tests.helpers.phases import limited, run_all, text_of
from tests.helpers.tolerance import active_bytes
from tests.helpers.toy import toy_model

from tiny_llm_lab.types import TokenEvent


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_no_more_than_batch_size_requests_hold_memory(llm, batch_size):
    held = []

    def look(call):
        held.append(live_requests(model) + (len(call.tokens) if call.batched else 0))

    model = FakeModel(before_call=look)
    prompts = [limited(text_of(3 + 5 * (i % 3), i), 8 + i % 4) for i in range(9)]
    run_all(llm, prompts, model, batch_size=batch_size, prefill_step=4)
    assert max(held) == batch_size


class BoomError(Exception):
    pass


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("error", [BoomError, KeyboardInterrupt])
@pytest.mark.parametrize("call_number", [1, 2, 3, 5, 8, 13])
def test_memory_is_given_back_after_an_exception(llm, error, call_number):
    def fail(call):
        if len(model.calls) == call_number:
            raise error

    model = FakeModel(before_call=fail)
    prompts = [limited(text_of(3 + 7 * (i % 2), i), 5) for i in range(6)]
    with pytest.raises(error):
        run_all(llm, prompts, model, batch_size=3, prefill_step=4)
    assert live_requests(model) == 0


@pytest.mark.task("2.7.7")
def test_memory_is_given_back_when_a_callback_fails(llm):
    before = active_bytes()
    model = toy_model(llm)
    mx.eval(model(mx.array([[1]])))
    weights = active_bytes() - before
    peak, num_tokens = [], []

    def fail(event):
        peak.append(active_bytes() - before - weights)
        num_tokens.append(isinstance(event, TokenEvent))
        if sum(num_tokens) == 8:
            raise BoomError

    # The exception keeps every local variable of the run alive: its caches must be empty all the same.
    with pytest.raises(BoomError) as caught:
        run_all(llm, [text_of(150, i) for i in range(4)], model, prefill_step=64, on_event=fail)
    assert caught.value.__traceback__ is not None
    assert active_bytes() - before - weights < max(peak) / 10
