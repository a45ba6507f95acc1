"""One request of the engine: what the scheduler counts, and the answer that its user sees."""

from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx

from tiny_llm_lab.types import Clock, EngineOutput, Model, SamplingParams, Tokenizer

from ..speculative.verify import PositionSampler


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
        raise NotImplementedError("task 3.4.5")

    @cached_property
    def sampler(self) -> PositionSampler:
        """Draws for any position (from day 3.6 on), the same tokens as `answer.sample` in its order."""
        raise NotImplementedError("task 3.4.5")

    def draws(self, logits: mx.array) -> mx.array:
        """What the request draws from its rows of logits [n, V] -> [n] uint32, lazily.

        One row without a guess; with one (from day 3.6 on) a row for each guessed token and one more.
        """
        raise NotImplementedError("task 3.4.5")

    def score(self, logits: mx.array, drawn: mx.array) -> tuple[mx.array, ...]:
        """The logprobs of the tokens `drawn` [n] from logits [n, V], as `score_tokens` returns them, lazily.

        Nothing unless the request asked for them (task 3.4.9).
        """
        raise NotImplementedError("task 3.4.5")

    @property
    def room_for_guesses(self) -> int:
        """How many guesses (day 3.6) have a use and a place: a step brings one token more than stand."""
        raise NotImplementedError("task 3.4.5")

    def accept(self, tokens: Sequence[int], scores: Sequence[mx.array] = ()) -> EngineOutput:
        """Take the tokens that a step brought, up to the one that ends the answer; what is new for the user.

        To be called before the scheduler's `commit`, which counts them as well. The output's logprobs are
        those of its token_ids (from 3.4.9 on), read from `scores`, which `score` returned before.
        """
        raise NotImplementedError("task 3.4.5")
