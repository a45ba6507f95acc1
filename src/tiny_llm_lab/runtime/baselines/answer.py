"""The growing answer of another engine to one prompt: when it ends, and when each part is known."""

from collections.abc import Iterator

from mlx_lm.generate import TextStateMachine

from tiny_llm_lab.types import (
    Arrival,
    Clock,
    Completion,
    DoneEvent,
    Event,
    FinishReason,
    ModelConfig,
    PrefillEvent,
    Timing,
    TokenEvent,
    Tokenizer,
    UserError,
    refuse_processors,
    require_room,
)


class Answer:
    """Takes an engine's tokens one by one and turns them into the events that a solution sends."""

    def __init__(
        self, arrival: Arrival, tokens: list[int], tokenizer: Tokenizer, max_seq_len: int, clock: Clock
    ) -> None:
        """`tokens` are those of the prompt.

        Raises UserError for a prompt longer than `max_seq_len`, and for what only an engine can do.
        """
        self.prompt_idx, self.sampling = arrival.prompt_idx, arrival.prompt.sampling
        self.tokens = tokens
        refuse_processors(self.sampling, arrival.prompt.processors)
        require_room(len(tokens), max_seq_len, "max_seq_len")
        # The last token is never stored, so there may be one more than the cache has room for.
        room = max_seq_len - len(tokens) + 1
        self.max_tokens = min(room, self.sampling.max_tokens or room)
        self.finish_reason: FinishReason | None = None
        self._events: list[Event] = []
        self._token_ids: list[int] = []
        self._token_s: list[float] = []
        self._arrival_s, self._clock = arrival.arrival_s, clock
        eos = frozenset() if self.sampling.ignore_eos else frozenset(tokenizer.eos_token_ids)
        self._eos = eos | frozenset(self.sampling.stop_token_ids)
        self._detokenizer = tokenizer.detokenizer
        self._text = ""
        # A state of None ends mlx-lm's machine, which holds text back that may become a stop string.
        self._stops = TextStateMachine({"normal": [(stop, None) for stop in self.sampling.stop]}).make_state()

    def computed(self, num_tokens: int) -> None:
        """`num_tokens` of the prompt are in the engine's cache."""
        self._events.append(PrefillEvent(self.prompt_idx, num_tokens, len(self.tokens), self._clock()))

    def accept(self, token: int) -> None:
        """Take the next token; sets finish_reason if it is the last or ends the text."""
        if token in self._eos:
            self._end("stop")
            return
        self._token_ids.append(token)
        self._token_s.append(self._clock())
        self._detokenizer.add_token(token)
        piece = self._released(self._detokenizer.last_segment)
        self._events.append(TokenEvent(self.prompt_idx, token, piece, self._token_s[-1]))
        if self._is_stopped:
            self._end("stop")
        elif len(self._token_ids) == self.max_tokens:
            self._end("length")

    def take_events(self) -> Iterator[Event]:
        """The events since the last call."""
        while self._events:
            yield self._events.pop(0)

    @property
    def _is_stopped(self) -> bool:
        return self._stops[0] is None

    def _released(self, segment: str) -> str:
        self._stops, piece, _ = TextStateMachine.step(self._stops, segment)
        self._text += piece
        return str(piece)

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        if not self._is_stopped:
            self._detokenizer.finalize()
            tail = self._released(self._detokenizer.last_segment)
            if not self._is_stopped:
                self._stops, held, _ = TextStateMachine.flush(self._stops)
                self._text, tail = self._text + held, tail + held
            if tail:
                self._events.append(TokenEvent(self.prompt_idx, None, tail, self._clock()))
        timing = Timing(self._arrival_s, tuple(self._token_s))
        num_prompt_tokens, token_ids = len(self.tokens), tuple(self._token_ids)
        done = Completion(self.prompt_idx, num_prompt_tokens, token_ids, self._text, reason, timing)
        self._events.append(DoneEvent(done))


def check_limits(config: ModelConfig, max_seq_len: int, *sizes: int) -> None:
    """UserError unless max_seq_len fits the model and every size (batch, step) is at least 1."""
    limit = config.max_position_embeddings
    if any(size < 1 for size in sizes):
        raise UserError("prefill_step and batch_size must be 1 or more")
    if not 1 <= max_seq_len <= limit:
        raise UserError(f"max_seq_len must be 1 to {limit} for this model, not {max_seq_len}")
