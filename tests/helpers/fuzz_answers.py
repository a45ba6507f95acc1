"""Answers that a fuzz compares: what a request gets alone, and what became of it in company."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from tests.helpers.fuzz_models import FuzzTokenizer
from tests.helpers.pictures import SeeingEngine
from tests.helpers.toy import ByteDetokenizer, random_array

from tiny_llm_lab.types import (
    Arrival,
    Completion,
    DoneEvent,
    EngineOptions,
    Event,
    PrefillEvent,
    Prompt,
    SamplingParams,
    SchedulerConfig,
    TokenEvent,
    UserError,
    Wanted,
)

# How far a logit may move when plain MLX computes a row in company: sums of some hundred float32 products.
_NOISE = 3e-4


@dataclass(frozen=True)
class Outcome:
    """All of an answer but its times."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str


@dataclass
class Log:
    """The events of one request, in order."""

    events: list[Event] = field(default_factory=list)
    may_restart: bool = False  # a prefill policy may drop the cache of a paused prompt

    def outcome(self) -> Outcome | str:
        """What the DoneEvent says, or what is wrong with the events before it."""
        done = [event.completion for event in self.events if isinstance(event, DoneEvent)]
        if len(done) != 1 or not isinstance(self.events[-1], DoneEvent):
            return f"{len(done)} ends in {len(self.events)} events, or events behind the end"
        completion = done[0]
        tokens = [event for event in self.events if isinstance(event, TokenEvent)]
        if tuple(event.token_id for event in tokens if event.token_id is not None) != completion.token_ids:
            return f"its events have other tokens than its completion {completion.token_ids}"
        if "".join(event.text for event in tokens) != completion.text:
            return f"its events have another text than its completion {completion.text!r}"
        computed = [event.num_computed_tokens for event in self.events if isinstance(event, PrefillEvent)]
        if computed != sorted(set(computed)) and not self.may_restart:
            return f"its prompt was computed to {computed}"
        if completion.token_ids and computed[-1] != completion.num_prompt_tokens:
            return f"of a prompt of {completion.num_prompt_tokens} tokens {computed[-1]} were reported"
        return outcome_of(completion)


def outcome_of(completion: Completion) -> Outcome:
    return Outcome(completion.token_ids, completion.text, completion.finish_reason)


REFUSED = Outcome((), "", "error")


def answered_alone(llm: Any, model: Any, prompt: Prompt, limit: int, rng: random.Random) -> Outcome:
    """By `stream_generate`, with at most `limit` stored tokens, in chunks, and a step ahead or not."""
    try:
        events = list(
            llm.stream_generate(
                model,
                FuzzTokenizer(),
                prompt.content,
                prompt.sampling,
                prefill_step=rng.choice((1, 7, 128)),
                max_seq_len=limit,
                async_scheduling=rng.random() < 0.3,
            )
        )
    except UserError:
        return REFUSED
    assert isinstance(events[-1], DoneEvent)
    return outcome_of(events[-1].completion)


def answered_by_engine(
    llm: Any,
    model: Any,
    prompt: Prompt,
    limit: int,
    block_size: int,
    kv_bits: int | None,
    seeing: SeeingEngine | None,
) -> Outcome:
    """By an engine that serves nothing else."""
    config = SchedulerConfig(max_model_len=limit)
    num_blocks = -(-limit // block_size)
    make = EngineOptions if seeing is None else seeing.options
    options = make(num_blocks=num_blocks, block_size=block_size, kv_bits=kv_bits)
    engine = llm.Engine(model, FuzzTokenizer(), config, options)
    if seeing is not None:
        seeing.queue.watch(engine)
        prompt = seeing.prompt(prompt)
    (completion,) = engine.generate([prompt], lambda event: None)
    engine.release()
    return outcome_of(completion)


def difference(got: Outcome, want: Outcome, prompt: Prompt, is_aborted: bool) -> str | None:
    """What `got` should not have; an aborted request may have any beginning of its answer."""
    if got == want:
        return None
    if is_aborted and got.finish_reason == "abort":
        if got.token_ids != want.token_ids[: len(got.token_ids)]:
            return f"aborted with {got.token_ids}, which does not begin {want.token_ids}"
        text = _decoded(got.token_ids, prompt.sampling)
        if got.text != text:
            return f"aborted with the text {got.text!r} instead of {text!r}"
        return None
    return f"{got} instead of {want}"


def is_near_tie(llm: Any, model: Any, prompt: Prompt, got: Outcome, want: Outcome) -> bool:
    """Whether the first different token was decided by less than what rounding can move."""
    length = next(
        (i for i, (a, b) in enumerate(zip(got.token_ids, want.token_ids, strict=False)) if a != b),
        min(len(got.token_ids), len(want.token_ids)),
    )
    tokens = [*prompt.content, *want.token_ids[:length]]
    logits = model(mx.array([tokens]), wanted=Wanted(last=1))[:, -1]
    answer = llm.Answer(FuzzTokenizer(), Arrival(0, prompt, 0.0), prompt.content, len(tokens) + 1)
    own = [llm.Penalties(prompt.sampling, prompt.content, answer.end_token_ids)]
    sampler = llm.Sampler(prompt.sampling)
    noisy = (logits + _NOISE * random_array(i, *logits.shape) for i in range(50))

    def changed(logits: mx.array) -> mx.array:
        row = logits[0]
        for processor in (*own, *prompt.processors):
            row = processor(row, prompt.content, want.token_ids[:length])
        return row[None]

    drawn = {sampler(changed(each), len(tokens)).item() for each in noisy}
    return len(drawn) > 1


def _decoded(token_ids: Sequence[int], sampling: SamplingParams) -> str:
    """Their text up to a stop string, which the end of an unfinished character may be.

    A stop string counts if it ends behind the finished characters of min_tokens tokens.
    """
    text, certain = "", 0
    detokenizer = ByteDetokenizer()
    for i, token in enumerate(token_ids):
        detokenizer.add_token(token)
        text += detokenizer.last_segment
        certain = len(text) if i < sampling.min_tokens else certain
    detokenizer.finalize()
    text += detokenizer.last_segment
    found = (text.find(each, max(0, certain - len(each) + 1)) for each in sampling.stop)
    return text[: min((place for place in found if place >= 0), default=len(text))]
