"""An answer that grows token by token: its text, when it ends, its events and its timing."""

import time
from collections.abc import Sequence

from tiny_llm_lab.types import Arrival, Clock, Completion, Event, Tokenizer


class Answer:
    """What the user of one request sees, however its tokens are computed."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        arrival: Arrival,
        prompt_token_ids: Sequence[int],
        max_seq_len: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Start an answer to `arrival`, whose prompt has `prompt_token_ids`, at most `max_seq_len` of them.

        `max_seq_len` is the most tokens that the KV cache stores for the request. The newest token is never
        stored, so prompt and answer may have one token more. Sets prompt_token_ids, sampling, max_seq_len,
        prompt_idx, token_ids = [], finish_reason = None, and end_token_ids: the tokenizer's end-of-sequence
        tokens, or none with sampling.ignore_eos.
        """
        raise NotImplementedError("task 2.6.2")

    @property
    def is_done(self) -> bool:
        """Whether the answer has ended."""
        raise NotImplementedError("task 2.6.2")

    @property
    def num_tokens(self) -> int:
        """The number of tokens of prompt and answer so far, which is the position of the next token."""
        raise NotImplementedError("task 2.6.2")

    @property
    def next_token(self) -> int | None:
        """The newest token of the answer, which the model has not seen yet; None before the first."""
        raise NotImplementedError("task 2.6.2")

    @property
    def last_token_s(self) -> float:
        """The time of the newest token on the run's clock; before the first token, the arrival."""
        raise NotImplementedError("task 2.6.2")

    @property
    def max_draft_tokens(self) -> int:
        """The most draft tokens worth verifying in the next step, limited by max_tokens and max_seq_len.

        A step adds one token more than it accepts, so the last token of the answer needs no draft. Negative
        if the answer has ended.
        """
        raise NotImplementedError("task 2.6.2")

    def prefilled(self, num_computed_tokens: int) -> None:
        """Record an event: `num_computed_tokens` of the prompt are in the KV cache."""
        raise NotImplementedError("task 2.6.2")

    def accept(self, token: int) -> None:
        """Append a sampled token to `token_ids`, and its text to the answer.

        Ends the answer with finish_reason "stop" at a stop string or at one of end_token_ids, which is not
        kept. Ends it with "length" at sampling.max_tokens, or if `token` could not be stored within
        max_seq_len. Raises ValueError if the answer has ended.
        """
        raise NotImplementedError("task 2.6.2")

    def abort(self) -> None:
        """End the answer with finish_reason "abort". Raises ValueError if it has already ended."""
        raise NotImplementedError("task 2.6.2")

    def take_events(self) -> list[Event]:
        """Returns the events since the last call, oldest first: every chunk, every token, the end.

        The joined texts of the token events are the answer. Text that was held back until the end comes in a
        TokenEvent without a token, just before the DoneEvent.
        """
        raise NotImplementedError("task 2.6.2")

    def text(self) -> str:
        """Returns the answer so far, without end-of-sequence tokens, stop strings and held-back text."""
        raise NotImplementedError("task 2.6.2")

    def completion(self) -> Completion:
        """Returns the result of an ended answer. Raises ValueError if the answer has not ended."""
        raise NotImplementedError("task 2.6.2")
