"""An answer that grows token by token: its text, when it ends, its events and its timing."""

import time
from collections.abc import Sequence

from tiny_llm_lab.types import (
    Arrival,
    Clock,
    Completion,
    DoneEvent,
    Event,
    FinishReason,
    PrefillEvent,
    Timing,
    TokenEvent,
    Tokenizer,
)
from tiny_llm_lab.types.scheduling.defaults import NoText

from .text_stream import TextStream


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
        From task 3.7.3 on: end_token_ids also has sampling.stop_token_ids.
        """
        self.prompt_token_ids = list(prompt_token_ids)
        self.sampling = sampling = arrival.prompt.sampling
        self.max_seq_len, self.prompt_idx = max_seq_len, arrival.prompt_idx
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._clock, self._arrival_s = clock, arrival.arrival_s
        self._token_s: list[float] = []
        self._events: list[Event] = []
        eos = frozenset() if sampling.ignore_eos else frozenset(tokenizer.eos_token_ids)
        self.end_token_ids = eos | frozenset(sampling.stop_token_ids)
        stream = TextStream(tokenizer.detokenizer, sampling.stop, sampling.num_without_stop)
        self._stream: TextStream | NoText = stream if sampling.detokenize else NoText()

    @property
    def is_done(self) -> bool:
        """Whether the answer has ended."""
        return self.finish_reason is not None

    @property
    def num_tokens(self) -> int:
        """The number of tokens of prompt and answer so far, which is the position of the next token."""
        return len(self.prompt_token_ids) + len(self.token_ids)

    @property
    def next_token(self) -> int | None:
        """The newest token of the answer, which the model has not seen yet; None before the first."""
        return self.token_ids[-1] if self.token_ids else None

    @property
    def last_token_s(self) -> float:
        """The time of the newest token on the run's clock; before the first token, the arrival."""
        return self._token_s[-1] if self._token_s else self._arrival_s

    @property
    def max_draft_tokens(self) -> int:
        """The most draft tokens worth verifying in the next step, limited by max_tokens and max_seq_len.

        A step adds one token more than it accepts, so the last token of the answer needs no draft. Negative
        if the answer has ended.
        """
        left = self.max_seq_len - self.num_tokens
        most = self.sampling.max_tokens
        return left if most is None else min(left, most - len(self.token_ids) - 1)

    def prefilled(self, num_computed_tokens: int) -> None:
        """Record an event: `num_computed_tokens` of the prompt are in the KV cache."""
        total = len(self.prompt_token_ids)
        self._events.append(PrefillEvent(self.prompt_idx, num_computed_tokens, total, self._clock()))

    def accept(self, token: int) -> None:
        """Append a sampled token to `token_ids`, and its text to the answer.

        Ends the answer with finish_reason "stop" at a stop string or at one of end_token_ids, which is not
        kept. Ends it with "length" at sampling.max_tokens, or if `token` could not be stored within
        max_seq_len. Raises ValueError if the answer has ended.
        From task 3.7.3 on: a stop string must end after the text of sampling.min_tokens tokens, and after
        the characters that `num_without_stop` of sampling counts.
        """
        if self.is_done:
            raise ValueError("the answer has ended")
        if token in self.end_token_ids:
            self._end("stop")
            return
        self.token_ids.append(token)
        self._token_s.append(self._clock())
        piece = self._stream.push(token, len(self.token_ids) > self.sampling.min_tokens)
        self._events.append(TokenEvent(self.prompt_idx, token, piece, self._token_s[-1]))
        if self._stream.stopped:
            self._end("stop")
        elif len(self.token_ids) == self.sampling.max_tokens or self.num_tokens > self.max_seq_len:
            self._end("length")

    def abort(self) -> None:
        """End the answer with finish_reason "abort". Raises ValueError if it has already ended."""
        if self.is_done:
            raise ValueError("the answer has ended")
        self._end("abort")

    def take_events(self) -> list[Event]:
        """Returns the events since the last call, oldest first: every chunk, every token, the end.

        The joined texts of the token events are the answer. Text that was held back until the end comes in a
        TokenEvent without a token, just before the DoneEvent.
        """
        events, self._events = self._events, []
        return events

    def text(self) -> str:
        """Returns the answer so far, without end-of-sequence tokens, stop strings and held-back text."""
        return self._stream.text

    def completion(self) -> Completion:
        """Returns the result of an ended answer. Raises ValueError if the answer has not ended."""
        if self.finish_reason is None:
            raise ValueError("the answer has not ended")
        return Completion(
            prompt_idx=self.prompt_idx,
            num_prompt_tokens=len(self.prompt_token_ids),
            token_ids=tuple(self.token_ids),
            text=self.text(),
            finish_reason=self.finish_reason,
            timing=Timing(self._arrival_s, tuple(self._token_s)),
        )

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        if tail := self._stream.finish():
            self._events.append(TokenEvent(self.prompt_idx, None, tail, self._clock()))
        self._events.append(DoneEvent(self.completion()))
