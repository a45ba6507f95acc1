"""The growing answer to one prompt of another engine: when it ends, and what becomes known of it when."""

from collections.abc import Sequence

from mlx_lm.generate import TextStateMachine

from tiny_llm_lab.types import (
    Clock,
    Completion,
    DoneEvent,
    Event,
    FinishReason,
    ModelConfig,
    PrefillEvent,
    SamplingParams,
    Timing,
    TokenEvent,
    Tokenizer,
    UserError,
)


class Answer:
    """Takes an engine's tokens one by one; `events` collects what they mean, under the seam's rules."""

    def __init__(
        self,
        prompt_idx: int,
        tokens: Sequence[int],
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        max_seq_len: int,
        arrival_s: float,
        clock: Clock,
    ) -> None:
        self.prompt_idx = prompt_idx
        self.tokens = list(tokens)
        # The last token is never stored, hence one more than the cache has room for.
        room = max_seq_len - len(self.tokens) + 1
        self.max_tokens = min(room, room if sampling.max_tokens is None else sampling.max_tokens)
        self.events: list[Event] = []
        self.finish_reason: FinishReason | None = None
        self._token_ids: list[int] = []
        self._token_s: list[float] = []
        self._arrival_s, self._clock = arrival_s, clock
        self._eos = frozenset() if sampling.ignore_eos else frozenset(tokenizer.eos_token_ids)
        self._detokenizer = tokenizer.detokenizer
        self._text = ""
        # A state of None ends mlx-lm's machine, which holds back whatever may become a stop string.
        edges = [(stop, None) for stop in sampling.stop]
        self._stops = TextStateMachine({"normal": edges}).make_state()

    def computed(self, num_tokens: int) -> None:
        """`num_tokens` of the prompt are in the engine's cache."""
        self.events.append(PrefillEvent(self.prompt_idx, num_tokens, len(self.tokens), self._clock()))

    def accept(self, token: int) -> None:
        """Take the next token; sets finish_reason when it is the last or ends the text."""
        if token in self._eos:
            self._end("stop")
            return
        self._token_ids.append(token)
        self._token_s.append(self._clock())
        self._detokenizer.add_token(token)
        piece = self._released(self._detokenizer.last_segment)
        self.events.append(TokenEvent(self.prompt_idx, token, piece, self._token_s[-1]))
        if self._is_stopped:
            self._end("stop")
        elif len(self._token_ids) == self.max_tokens:
            self._end("length")

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
                self.events.append(TokenEvent(self.prompt_idx, None, tail, self._clock()))
        self.events.append(DoneEvent(self._completion(reason)))

    def _completion(self, reason: FinishReason) -> Completion:
        return Completion(
            prompt_idx=self.prompt_idx,
            num_prompt_tokens=len(self.tokens),
            token_ids=tuple(self._token_ids),
            text=self._text,
            finish_reason=reason,
            timing=Timing(self._arrival_s, tuple(self._token_s)),
        )


def checked_tokens(
    tokenizer: Tokenizer, content: str | Sequence[int], config: ModelConfig, max_seq_len: int
) -> list[int]:
    """The prompt's tokens; UserError, in the words of the reference, for one that cannot be served."""
    tokens = list(tokenizer.encode(content) if isinstance(content, str) else content)
    if not tokens:
        raise UserError("the prompt is empty: give at least one token")
    if len(tokens) > max_seq_len:
        raise UserError(
            f"the prompt has {len(tokens)} tokens but max_seq_len is {max_seq_len}: "
            "shorten it or raise the limit"
        )
    if not all(0 <= token < config.vocab_size for token in tokens):
        raise UserError("the prompt has a token id outside the vocabulary: use this model's tokenizer")
    return tokens


def check_limits(config: ModelConfig, max_seq_len: int, *sizes: int) -> None:
    """UserError unless max_seq_len fits the model and every size (batch, step) is at least 1."""
    limit = config.max_position_embeddings
    if any(size < 1 for size in sizes):
        raise UserError("prefill_step and batch_size must be 1 or more")
    if not 1 <= max_seq_len <= limit:
        raise UserError(f"max_seq_len must be 1 to {limit} for this model, not {max_seq_len}")
