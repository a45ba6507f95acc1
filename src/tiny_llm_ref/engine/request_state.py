"""One request of the engine: what the scheduler counts, and the answer that its user sees."""

from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx

from tiny_llm_lab.types import Clock, EngineOutput, Model, SamplingParams, TokenEvent, Tokenizer

from ..generate.logprobs import read_logprobs, score_tokens
from ..generate.request import Request
from ..speculative.verify import PositionSampler
from .sequence import ScheduledRequest


class EngineRequest:
    """A request on its way through the engine; its keys and values lie in the engine's blocks."""

    def __init__(
        self,
        request_id: str,
        model: Model,
        tokenizer: Tokenizer,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        number: int,
        max_seq_len: int,
        priority: int,
        is_batch_class: bool,
        arrival_s: float,
        clock: Clock,
    ) -> None:
        """Tokenize and check the prompt as `Request` does, which becomes `answer`; `number` its prompt_idx.

        Sets scheduled, the scheduler's side, and last_token_s, when the user last heard of it. Raises
        UserError for a prompt that cannot be served.
        """
        self.answer = Request(
            model,
            tokenizer,
            prompt,
            prompt_idx=number,
            max_seq_len=max_seq_len,
            sampling=sampling,
            arrival_s=arrival_s,
            clock=clock,
        )
        tokens = self.answer.prefill_tokens
        self.scheduled = ScheduledRequest(request_id, tokens, priority, arrival_s, is_batch_class)
        self.last_token_s = arrival_s

    @cached_property
    def sampler(self) -> PositionSampler:
        """Draws for any position (from day 3.6 on), the same tokens as `answer.sample` in its order."""
        return PositionSampler(self.answer.sampling, len(self.scheduled.prompt_token_ids))

    def draws(self, logits: mx.array) -> mx.array:
        """What the request draws from its rows of logits [n, V] -> [n] uint32, lazily.

        One row without a guess; with one (from day 3.6 on) a row for each guessed token and one more.
        """
        if self.scheduled.spec_token_ids:
            return self.sampler.lazy_draws(logits, self.scheduled.num_tokens)
        return self.answer.sample(logits)

    def score(self, logits: mx.array, drawn: mx.array) -> tuple[mx.array, ...]:
        """The logprobs of the tokens `drawn` [n] from logits [n, V], as `score_tokens` returns them, lazily.

        Nothing unless the request asked for them (task 3.4.9).
        """
        num_top = self.answer.sampling.logprobs
        return () if num_top is None else score_tokens(logits, drawn, num_top)

    @property
    def room_for_guesses(self) -> int:
        """How many guesses (day 3.6) have a use and a place: a step brings one token more than stand."""
        answer, stored = self.answer, self.scheduled.num_tokens
        most = answer.sampling.max_tokens
        left = answer.max_seq_len - stored
        return (left if most is None else min(left, most - len(answer.token_ids) - 1)) if left > 0 else 0

    def accept(self, tokens: Sequence[int], scores: Sequence[mx.array] = ()) -> EngineOutput:
        """Take the tokens that a step brought, up to the one that ends the answer; what is new for the user.

        To be called before the scheduler's `commit`, which counts them as well. The output's logprobs are
        those of its token_ids (from 3.4.9 on), read from `scores`, which `score` returned before.
        """
        answer = self.answer
        answer.offset = self.scheduled.num_tokens
        for token in tokens:
            if not answer.is_done:
                answer.accept(token)
                answer.offset += 1
        news = tuple(answer.take_events())
        events = [event for event in news if isinstance(event, TokenEvent)]
        if events:
            self.last_token_s = events[-1].time_s
        shown = tuple(event.token_id for event in events if event.token_id is not None)
        return EngineOutput(
            self.scheduled.request_id,
            shown,
            "".join(event.text for event in events),
            answer.completion() if answer.is_done else None,
            read_logprobs(shown, scores) if scores else (),
            news,
        )
