"""The three phases of week 2's loop, run by hand and with given times."""

from collections.abc import Sequence

from tests.helpers.fakes import FakeClock, FakeModel
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab import load_solution
from tiny_llm_lab.types import Arrival, BatchSettings, Completion, Event, Prompt, SamplingParams

CHUNK_S, DECODE_S = 2.0, 0.25
TOKENIZER = ByteTokenizer()
UNCHUNKED = 999_999


def text_of(length, seed=0):
    return bytes(97 + (7 * i + 3 * seed) % 26 for i in range(length)).decode()


def limited(prompt, max_tokens, **settings):
    return Prompt(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **settings)


def arrival_of(prompt, sampling=SamplingParams(), prompt_idx=0, arrival_s=0.0):
    return Arrival(prompt_idx, Prompt(prompt, sampling), arrival_s)


def timed_model(clock, **settings):
    """A model whose chunks take 2 s and whose decode steps take 0.25 s."""

    def take_time(call):
        clock.now += DECODE_S if call.batched else CHUNK_S

    return FakeModel(before_call=take_time, **settings)


def run_phases(llm, prompts, model=None, **settings):
    """The three phases over and over, until no work is left: task 2.7.7 by hand."""
    settings = {"clock": FakeClock(), "max_seq_len": 512, "async_scheduling": False, **settings}
    run = llm.BatchGenerator(model or FakeModel(), TOKENIZER, prompts, BatchSettings().updated(**settings))
    for _ in range(2000):
        if not run.has_work_remaining():
            run.release()
            return run.collect_results()
        if not any([run.handle_prefill_phase(), run.handle_decode_phase(), run.move_prefill_to_decode()]):
            run.wait_for_arrival()
    raise AssertionError("2,000 iterations: does this run ever end?")


def run_all(llm, prompts, model=None, **settings):
    settings = {"clock": FakeClock(), "max_seq_len": 512, "async_scheduling": False, **settings}
    return llm.batch_generate(model or FakeModel(), TOKENIZER, prompts, **settings)


def serve(prompts: Sequence[Prompt], prefill_step: int) -> tuple[list[Completion], list[Event]]:
    """The completions and the events of the reference's loop, on a clock that counts the model's tokens."""
    clock, events = FakeClock(), list[Event]()

    def count(call):
        clock.now += len(call.tokens) * call.length

    settings = {"prefill_step": prefill_step, "batch_size": 2, "clock": clock, "on_event": events.append}
    return run_all(load_solution("ref"), prompts, FakeModel(before_call=count), **settings), events


def kinds(events):
    """The types of events by name, in their order: what a failing comparison shows side by side."""
    return " ".join(type(event).__name__ for event in events)
