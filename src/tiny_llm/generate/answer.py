"""An answer that grows token by token: its text, the rules that end it, its events, its timing."""

import time
from collections.abc import Sequence

from tiny_llm_lab.types import Arrival, Clock, Completion, Event, Tokenizer


class Answer:
    """What the user of one request sees, wherever and however its tokens are computed."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        arrival: Arrival,
        prompt_token_ids: Sequence[int],
        max_seq_len: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Start an answer to `arrival`, whose prompt has `prompt_token_ids`, at most `max_seq_len`.

        `max_seq_len` is the most tokens that the KV cache holds for the request. The newest token is never
        stored, so prompt and answer may have one token more. Sets prompt_token_ids, sampling, max_seq_len,
        prompt_idx, token_ids = [], finish_reason = None and end_token_ids: unless sampling.ignore_eos, the
        tokenizer's end-of-sequence tokens.
        """
        raise NotImplementedError("task 2.6.2")

    @property
    def is_done(self) -> bool:
        """Whether the answer has ended."""
        raise NotImplementedError("task 2.6.2")

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer so far: the position of the next token."""
        raise NotImplementedError("task 2.6.2")

    @property
    def next_token(self) -> int | None:
        """The newest token of the answer, which the model has not seen yet; None before the first."""
        raise NotImplementedError("task 2.6.2")

    @property
    def last_token_s(self) -> float:
        """When the newest token came, on the run's clock; the arrival before the first token."""
        raise NotImplementedError("task 2.6.2")

    @property
    def max_draft_tokens(self) -> int:
        """The most draft tokens worth verifying in the next step: max_tokens and max_seq_len bound it.

        A step brings one token more than it accepts, so the last token to come needs no draft. Negative
        when the answer has ended.
        """
        raise NotImplementedError("task 2.6.2")

    def prefilled(self, num_computed_tokens: int) -> None:
        """Record the event that `num_computed_tokens` of the prompt are in the KV cache."""
        raise NotImplementedError("task 2.6.2")

    def accept(self, token: int) -> None:
        """Append a sampled token: the newest of `token_ids`, and the next piece of the text.

        Ends the answer with finish_reason "stop" at one of end_token_ids, which is not kept, or a stop
        string; with "length" at sampling.max_tokens or when `token` could not be stored within max_seq_len.
        Raises ValueError when the answer has ended.
        """
        raise NotImplementedError("task 2.6.2")

    def abort(self) -> None:
        """End the answer with finish_reason "abort". Raises ValueError when it has ended."""
        raise NotImplementedError("task 2.6.2")

    def take_events(self) -> list[Event]:
        """The events since the last call, oldest first: every chunk, every token, the end.

        The texts of the token events, joined, are the answer. Text that was held back until the end
        comes in a TokenEvent without a token, just before the DoneEvent.
        """
        raise NotImplementedError("task 2.6.2")

    def text(self) -> str:
        """The answer so far, without end-of-sequence tokens, stop strings and held-back text."""
        raise NotImplementedError("task 2.6.2")

    def completion(self) -> Completion:
        """The result of an ended answer. Raises ValueError before its end."""
        raise NotImplementedError("task 2.6.2")
