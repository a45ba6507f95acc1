"""A run of week 2's loop with all of it drawn, and what must hold whatever was drawn."""

import random

import pytest
from tests.helpers.ahead import told
from tests.helpers.fakes import FakeClock, FakeModel, live_requests
from tests.helpers.fragile import BrokenError
from tests.helpers.phases import CHUNK_S, DECODE_S, text_of

from tiny_llm_lab.types import DoneEvent, PrefillEvent, Prompt, SamplingParams, TokenEvent

NO_PROMPTS = (None, 7, "", [], "a\ud800b", [1.5, 2.0], ["a"], [None], [-1], [258])


def index_of(event):
    return (event.completion if isinstance(event, DoneEvent) else event).prompt_idx


class Chunks:
    """A chunk policy that draws its sizes, and metrics; it remembers what it was told."""

    def __init__(self, run, rng):
        self.run, self.rng = run, rng
        self.size, self.told, self.recorded, self.is_due = None, [], [], False

    def select_chunk_size(self, base_chunk_size, decode_pressure):
        share = len(self.run.decoding) / self.run.rows
        assert (base_chunk_size, decode_pressure) == (self.run.step, share), "prefill_step and the share"
        assert not self.is_due, "no chunk was computed, although nothing decodes that a pause would help"
        self.is_due = not self.run.decoding
        self.size = self.rng.choice((0, 1, 2, base_chunk_size, 3 * base_chunk_size))
        return self.size

    def record_chunk(self, chunk_size, chunk_time):
        self.told.append((chunk_size, round(chunk_time, 6)))

    def record_prefill_chunk(self, chunk_time, chunk_size):
        self.recorded.append((chunk_size, round(chunk_time, 6)))

    def record_decode_step(self, decode_time):
        self.recorded.append(("decode", round(decode_time, 6)))


class AnyBatch:
    """Draws prompts and settings, and checks every call of the model and every event as it happens.

    With `event_s` an event takes time, and no call does: a step ahead then changes no arrival.
    """

    def __init__(self, seed, prefill_policy=None, temperatures=(0.0,), event_s=0.0):
        rng = random.Random(seed)
        self.limit, self.step = rng.choice((24, 60)), rng.choice((1, 3, 8, 128))
        self.event_s = event_s
        self.prompts = [self._prompt(rng, i, temperatures) for i in range(rng.choice((0, 1, 6, 9, 9, 9, 9)))]
        self.rows = min(rng.choice((1, 3, 5, 9, 9)), max(1, len(self.prompts)))
        self.clock = FakeClock(start=rng.choice((0.0, 64.0)))
        self.start_s, self.prefill_policy = self.clock.now, prefill_policy
        self.chunks = Chunks(self, rng) if rng.random() < 0.6 else None
        self.model = FakeModel(before_call=self._called)
        self.events, self.decoding, self.ended, self.began = [], [], set(), []
        self.ahead = self.chunked = self.refused = False
        self.before, self.fails_at = 0, None

    def _prompt(self, rng, number, temperatures):
        length = rng.choice((1, 3, 4, 5, 9, 20, self.limit + rng.randrange(-1, 2)))
        content = rng.choice(NO_PROMPTS) if rng.random() < 0.15 else text_of(length, number)
        sampling = SamplingParams(
            max_tokens=rng.choice((1, 2, 9, 30, None, None)),
            temperature=rng.choice(temperatures),
            seed=rng.randrange(9),
            stop=tuple(rng.sample("abcdefghijkl", rng.choice((0, 0, 2, 5)))),
        )
        arrival_s = rng.choice((0.0, 0.0, 0.0, rng.random() * (60 * self.event_s or 40)))
        kind = rng.choice(("interactive", "batch"))
        return Prompt(content, sampling, arrival_s=arrival_s, priority_class=kind)

    def run(self, drive, llm, ahead=False, fails_at=None):
        """Serves the prompts by `run_phases` or `run_all`; an error is raised at an event, if asked for."""
        self.ahead, self.fails_at, prompts = ahead, fails_at, list(self.prompts)
        more = {"prefill_policy": self.prefill_policy} if self.prefill_policy else {}
        if self.chunks:
            more |= {"chunk_policy": self.chunks, "metrics": self.chunks}
        settings = {"batch_size": self.rows, "prefill_step": self.step, "max_seq_len": self.limit, **more}
        settings |= {"on_event": self._note, "async_scheduling": ahead, "clock": self.clock}
        with pytest.MonkeyPatch.context() as patch:
            self.clock.take_over(patch, llm.BatchGenerator)
            try:
                done = drive(llm, prompts, self.model, **settings)
            except BrokenError:
                done = []
        assert live_requests(self.model) == 0, "the caches of all requests are given back"
        if fails_at is None:
            assert prompts == self.prompts, "the list of the caller stays as it was"
            self._check(done)
        return done

    def _called(self, call):
        """A chunk or a decode step begins."""
        num_decoding = len(self.decoding)
        if not call.batched:
            assert self.ahead or not (self.chunked and self.before), "two chunks and no decode step between"
            assert num_decoding < self.rows, "a chunk although no row is free"
            live = live_requests(self.model)
            assert self.prefill_policy or live <= 1, f"{live} caches of their own: only the prompt has one"
            size = self.step if self.chunks is None else self.chunks.size or 1
            assert call.length <= size, f"a chunk of {call.length} tokens where {size} are allowed"
            self.chunked, self.before = True, num_decoding
            if self.chunks is not None:
                self.chunks.is_due = False
        elif not self.ahead:
            joins = self.chunked and self.before
            rows = self.before if joins else num_decoding
            assert len(call.tokens) == rows, "a request joins behind the decode step of its last chunk"
            is_paused = self.chunks is not None and self.chunks.size == 0
            has_reason = self.chunked or is_paused or self.refused or num_decoding == self.rows
            assert has_reason or self.prefill_policy or not self._waiting(), "a prompt waits for no reason"
            self.chunked = self.refused = False
        if not self.event_s:
            self.clock.now += DECODE_S if call.batched else CHUNK_S

    def _waiting(self):
        known, now_s = {*self.ended, *self.decoding}, self.clock.now - self.start_s
        return [i for i, each in enumerate(self.prompts) if i not in known and each.arrival_s < now_s]

    def _note(self, event):
        self.events.append(event)
        self.clock.now += self.event_s
        if len(self.events) == self.fails_at:
            raise BrokenError
        index = index_of(event)
        if isinstance(event, DoneEvent):
            self.refused |= event.completion.finish_reason == "error"
            self.ended.add(index)
            self.decoding = [each for each in self.decoding if each != index]
            return
        assert self.event_s or event.time_s == self.clock.now, "events are told as they happen"
        assert event.time_s >= self.start_s + self.prompts[index].arrival_s, "nobody starts before it arrives"
        if isinstance(event, PrefillEvent):
            self.began += [index] * (index not in self.began)
        elif index not in self.decoding:
            self.decoding.append(index)

    def _check(self, done):
        assert [each.prompt_idx for each in done] == list(range(len(self.prompts)))
        for prompt, completion in zip(self.prompts, done, strict=True):
            self._check_answer(prompt, completion)
        if self.prefill_policy is None:
            places = [(self.prompts[i].arrival_s, i) for i in self.began]
            assert places == sorted(places), "first come, first served"
        calls = [
            ("decode", DECODE_S) if each.batched else (each.length, CHUNK_S) for each in self.model.calls
        ]
        if self.chunks is not None and not self.event_s:
            assert self.chunks.told == [each for each in calls if each[0] != "decode"], "tokens and seconds"
            assert self.ahead or self.chunks.recorded == calls, "what the metrics are told, in its order"

    def _check_answer(self, prompt, done):
        mine = [each for each in self.events if index_of(each) == done.prompt_idx]
        assert [each.completion for each in mine if isinstance(each, DoneEvent)] == [done]
        assert isinstance(mine[-1], DoneEvent) and done.timing.arrival_s == self.start_s + prompt.arrival_s
        num_tokens = (
            len(prompt.content) if isinstance(prompt.content, str) and prompt.content.isascii() else 0
        )
        assert done.num_prompt_tokens == num_tokens, "of a refused prompt as well, if they can be counted"
        if not 1 <= num_tokens <= self.limit:
            assert (done.finish_reason, done.token_ids, done.text, len(mine)) == ("error", (), "", 1)
            assert done.error and "\n" not in done.error
            return
        ends = [each.num_computed_tokens for each in mine if isinstance(each, PrefillEvent)]
        assert ends[-1] == num_tokens and (self.prefill_policy or ends == sorted(set(ends)))
        tokens = [each for each in mine if isinstance(each, TokenEvent)]
        assert mine[len(ends) : -1] == tokens, "chunks, tokens, the end"
        assert tuple(each.token_id for each in tokens) == done.token_ids
        assert tuple(each.time_s for each in tokens) == done.timing.token_s
        assert "".join(each.text for each in tokens) == done.text
        if prompt.sampling.temperature == 0:
            alone = self.model.answer_to(prompt.content.encode(), len(done.token_ids))
            assert list(done.token_ids) == alone, f"the answer to prompt {done.prompt_idx}"
        most = min(prompt.sampling.max_tokens or self.limit, self.limit + 1 - num_tokens)
        stops = [chr(each) in prompt.sampling.stop for each in done.token_ids]
        is_stopped = True in stops
        assert done.finish_reason == ("stop" if is_stopped else "length")
        assert len(stops) == (stops.index(True) + 1 if is_stopped else most)
        assert done.text == bytes(done.token_ids).decode()[: len(stops) - is_stopped]

    @property
    def told(self):
        return [told(each) for each in self.events]
