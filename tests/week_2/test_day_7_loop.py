"""Day 2.7: the loop. Chunking may change when things happen, never what is said."""

import random

import mlx.core as mx
import pytest
from tests.helpers.fakes import FakeClock, FakeModel
from tests.helpers.fragile import BrokenError
from tests.helpers.phases import TOKENIZER, UNCHUNKED, limited, run_all, text_of
from tests.helpers.tolerance import active_bytes
from tests.helpers.toy import toy_model

from tiny_llm_lab.types import BatchSettings, Prompt, SamplingParams, TokenEvent, UserError


@pytest.mark.task("2.7.7")
def test_sampling_serves_prompts_that_bring_none(llm):
    own = SamplingParams(max_tokens=2)
    done = run_all(llm, ["abc", Prompt("def", own), [97]], FakeModel(), sampling=SamplingParams(max_tokens=5))
    assert [len(completion.token_ids) for completion in done] == [5, 2, 5]


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"prefill_step": 0}, {"max_seq_len": 0}, {"max_seq_len": 5000}]
)
def test_settings_out_of_range_are_rejected(llm, settings):
    with pytest.raises(UserError):
        run_all(llm, ["abc"], FakeModel(), **settings)


@pytest.mark.task("2.7.7")
def test_one_string_is_no_list_of_prompts(llm):
    with pytest.raises(UserError):
        run_all(llm, "abc", FakeModel())


GRID_LENGTHS = sorted({n for c in (7, 32, 128) for n in (1, c - 1, c, c + 1, 3 * c + 1)})


@pytest.fixture(scope="module")
def toy_answers(llm):
    """A model, prompts around the edges of every chunk size, and what the plain cached loop answers."""
    model = toy_model(llm)
    prompts = [Prompt(text_of(n, n), SamplingParams(max_tokens=4 + n % 5)) for n in GRID_LENGTHS]
    answers = []
    for prompt in prompts:
        loop = llm.simple_generate_with_kv_cache(
            model, TOKENIZER, prompt.content, max_tokens=prompt.sampling.max_tokens
        )
        answers.append(tuple(event.token_id for event in loop if event.token_id is not None))
    return model, prompts, answers


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("is_shuffled", [False, True], ids=["in_order", "shuffled"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("step", [1, 7, 32, 128, UNCHUNKED])
def test_chunked_prefill_never_changes_the_answer(llm, toy_answers, step, batch_size, is_shuffled):
    model, prompts, answers = toy_answers
    order = list(range(len(prompts)))
    if is_shuffled:
        random.Random(step + batch_size).shuffle(order)
    done = run_all(llm, [prompts[i] for i in order], model, batch_size=batch_size, prefill_step=step)
    assert [completion.token_ids for completion in done] == [answers[i] for i in order]


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(("num_prompts", "batch_size", "rows"), [(2, 1000, 2), (3, 2, 2), (0, 9, 1)])
def test_rows_never_exceed_the_prompts(llm, monkeypatch, num_prompts, batch_size, rows):
    # A row costs memory whether a request sits in it or not.
    made = []
    generator = llm.BatchGenerator.__init__

    def look(self, *args):
        generator(self, *args)
        made.append(self.settings.batch_size)

    monkeypatch.setattr(llm.BatchGenerator, "__init__", look)
    run_all(llm, [limited(text_of(3, i), 2) for i in range(num_prompts)], batch_size=batch_size)
    assert made == [rows], (
        f"{num_prompts} prompts and a batch_size of {batch_size}: the generator needs {rows} rows, got {made}"
    )


@pytest.mark.task("2.7.7")
def test_refused_prompts_are_reported_once_on_stderr(llm, capsys):
    run_all(llm, [text_of(20), "ok", text_of(30)], max_seq_len=16, sampling=SamplingParams(max_tokens=1))
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("2 of 3 prompts were refused: ")
    assert "30 tokens" in line, "the cure for the longest prompt serves the others too"
    assert "max_seq_len is 16" in line
    assert "30 or more" in line


@pytest.mark.task("2.7.7")
def test_nothing_is_reported_when_all_went_well_or_events_tell_it(llm, capsys):
    run_all(llm, [limited("ab", 1)])
    run_all(llm, ["", text_of(20)], max_seq_len=16, on_event=lambda event: None)
    assert capsys.readouterr().err == ""


@pytest.mark.task("2.7.4")
def test_waiting_for_an_arrival_is_one_short_sleep(llm, monkeypatch):
    clock = FakeClock()
    clock.take_over(monkeypatch, llm.BatchGenerator)
    run = llm.BatchGenerator(FakeModel(), TOKENIZER, [Prompt("a", arrival_s=2.0)], BatchSettings(clock=clock))
    run.wait_for_arrival()
    (nap,) = clock.naps
    assert 0 < nap <= 0.1, "short: an interrupt must not wait"
    clock.now = 3.0
    run.wait_for_arrival()
    llm.BatchGenerator(FakeModel(), TOKENIZER, [], BatchSettings(clock=clock)).wait_for_arrival()
    assert all(nap <= 0 for nap in clock.naps[1:]), "it has arrived; and where no prompt waits nobody sleeps"


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
            raise BrokenError

    # The exception keeps every local variable of the run alive: its caches must be empty all the same.
    with pytest.raises(BrokenError) as caught:
        run_all(llm, [text_of(150, i) for i in range(4)], model, prefill_step=64, on_event=fail)
    assert caught.value.__traceback__ is not None
    assert active_bytes() - before - weights < max(peak) / 10
