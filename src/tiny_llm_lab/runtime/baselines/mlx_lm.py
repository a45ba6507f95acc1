"""mlx-lm with the interface of a solution, so that every benchmark can print mine | ref | mlx-lm.

Loops, masks, caches and kernels are its own. Ours are the arrivals of prompts, the limits and the events.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm import sample_utils
from mlx_lm.generate import BatchGenerator, TextStateMachine, generate_step, wired_limit

from tiny_llm_lab import types
from tiny_llm_lab.runtime.baselines.mlx_lm_model import MlxLmModel, build_model


class Answer:
    """Takes an engine's tokens one by one and turns them into the events that a solution sends."""

    def __init__(
        self,
        arrival: types.Arrival,
        tokens: list[int],
        tokenizer: types.Tokenizer,
        max_seq_len: int,
        clock: types.Clock,
    ) -> None:
        """`tokens` are those of the prompt.

        Raises UserError for a prompt longer than `max_seq_len`, and for what only an engine can do.
        """
        self.prompt_idx, self.sampling = arrival.prompt_idx, arrival.prompt.sampling
        self.tokens = tokens
        types.refuse_processors(self.sampling, arrival.prompt.processors)
        types.require_room(len(tokens), max_seq_len, "max_seq_len")
        # The last token is never stored, so there may be one more than the cache has room for.
        room = max_seq_len - len(tokens) + 1
        self.max_tokens = min(room, self.sampling.max_tokens or room)
        self.finish_reason: types.FinishReason | None = None
        self._events: list[types.Event] = []
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
        self._events.append(types.PrefillEvent(self.prompt_idx, num_tokens, len(self.tokens), self._clock()))

    def accept(self, token: int) -> None:
        """Take the next token; sets finish_reason if it is the last or ends the text."""
        if token in self._eos:
            self._end("stop")
            return
        self._token_ids.append(token)
        self._token_s.append(self._clock())
        self._detokenizer.add_token(token)
        piece = self._released(self._detokenizer.last_segment)
        self._events.append(types.TokenEvent(self.prompt_idx, token, piece, self._token_s[-1]))
        if self._is_stopped:
            self._end("stop")
        elif len(self._token_ids) == self.max_tokens:
            self._end("length")

    def take_events(self) -> Iterator[types.Event]:
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

    def _end(self, reason: types.FinishReason) -> None:
        self.finish_reason = reason
        if not self._is_stopped:
            self._detokenizer.finalize()
            tail = self._released(self._detokenizer.last_segment)
            if not self._is_stopped:
                self._stops, held, _ = TextStateMachine.flush(self._stops)
                self._text, tail = self._text + held, tail + held
            if tail:
                self._events.append(types.TokenEvent(self.prompt_idx, None, tail, self._clock()))
        timing = types.Timing(self._arrival_s, tuple(self._token_s))
        num_prompt_tokens, token_ids = len(self.tokens), tuple(self._token_ids)
        done = types.Completion(self.prompt_idx, num_prompt_tokens, token_ids, self._text, reason, timing)
        self._events.append(types.DoneEvent(done))


__all__ = ["batch_generate", "build_model", "stream_generate"]

_UNUSED = ("prefill_memory", "chunk_policy", "prefill_policy", "metrics")

Sampler = Callable[[mx.array], mx.array]


def stream_generate(
    model: types.Model,
    tokenizer: types.Tokenizer,
    prompt: str | Sequence[int],
    sampling: types.SamplingParams = types.SamplingParams(),
    *,
    prefill_step: int = 128,
    max_seq_len: int | None = None,
    async_scheduling: bool | None = None,
) -> Iterator[types.Event]:
    """Answer one prompt with mlx-lm's `generate_step`, yielding every event, DoneEvent last.

    mlx-lm computes the last prompt token by itself; events of the chunks come with the first token.
    `async_scheduling` changes nothing: mlx-lm always begins a step before it reads the one in front.
    """
    network = _network(model)
    limit = model.config.max_position_embeddings if max_seq_len is None else max_seq_len
    types.BatchSettings(prefill_step=prefill_step, max_seq_len=limit).require_valid(model.config)
    tokens = types.prompt_token_ids(tokenizer, prompt, model.config)
    arrival = types.Arrival(0, types.Prompt(tokens, sampling), time.perf_counter())
    answer = Answer(arrival, tokens, tokenizer, limit, time.perf_counter)
    stream = _stream()
    steps = generate_step(
        mx.array(answer.tokens),
        network,
        stream,
        max_tokens=answer.max_tokens,
        sampler=_sampler(sampling),
        prefill_step_size=prefill_step,
        prompt_progress_callback=lambda done, _: answer.computed(done) if done else None,
    )
    with wired_limit(network, [stream]):  # as BatchGenerator does: it counts on Metal
        for token, _ in steps:
            answer.accept(int(token))
            yield from answer.take_events()
            if answer.finish_reason is not None:
                return


def batch_generate(
    model: types.Model,
    tokenizer: types.Tokenizer,
    prompts: Sequence[str | Sequence[int] | types.Prompt],
    **keywords: Any,
) -> list[types.Completion]:
    """Answer every prompt with mlx-lm's `BatchGenerator`; one completion per prompt, in prompt order.

    It computes several prompts at once, each at most `prefill_step` tokens further between two decode
    steps. Limits, errors and events are a solution's; see `batch_generate` of the reference.
    `async_scheduling` changes nothing: mlx-lm always launches a step before it reads the last one. Raises
    UserError for policies and metrics: mlx-lm can't use them.
    """
    if unused := [name for name, given in keywords.items() if name in _UNUSED and given is not None]:
        raise types.UserError(f"mlx-lm has its own scheduling: leave out {unused[0]}")
    settings = types.BatchSettings().updated(**keywords)
    settings.require_valid(model.config)
    arrivals = types.Arrivals(prompts, settings.sampling, settings.clock)
    generator = BatchGenerator(
        _network(model),
        completion_batch_size=settings.batch_size,
        prefill_batch_size=settings.batch_size,
        prefill_step_size=settings.prefill_step or 128,
        stream=_stream(),
    )
    run = _BatchRun(generator, settings.on_event)
    try:
        while arrivals or run.active:
            # mlx-lm counts prompts in prefill and in decode separately, and so takes more than batch_size.
            while len(run.active) < settings.batch_size and (arrival := arrivals.pop()) is not None:
                _begin(run, arrival, tokenizer, model.config, settings)
            if run.active:
                run.step()
            else:
                arrivals.wait()
    finally:
        generator.close()  # gives the memory limit back; the caches go with the generator
    return sorted(run.completions, key=lambda completion: completion.prompt_idx)


def _begin(
    run: "_BatchRun",
    arrival: types.Arrival,
    tokenizer: types.Tokenizer,
    config: types.ModelConfig,
    settings: types.BatchSettings,
) -> None:
    num_tokens = 0
    try:
        tokens = types.prompt_token_ids(tokenizer, arrival.prompt.content, config)
        num_tokens = len(tokens)
        run.add(Answer(arrival, tokens, tokenizer, settings.max_seq_len, settings.clock))
    except types.UserError as error:
        run.tell(types.DoneEvent(arrival.refused(error, num_tokens)))


class _BatchRun:
    """One call of `batch_generate`: the answers in progress, and the finished ones."""

    def __init__(self, generator: BatchGenerator, on_event: types.EventCallback) -> None:
        self.active: dict[int, Answer] = {}  # by mlx-lm's uid
        self.completions: list[types.Completion] = []
        self._generator, self._on_event = generator, on_event

    def add(self, answer: Answer) -> None:
        """Hand a prompt over to mlx-lm."""
        (uid,) = self._generator.insert(
            [answer.tokens], max_tokens=[answer.max_tokens], samplers=[_sampler(answer.sampling)]
        )
        self.active[uid] = answer

    def step(self) -> None:
        """Let mlx-lm advance everything once."""
        chunks, tokens = self._generator.next()
        for chunk in chunks:
            self.active[chunk.uid].computed(chunk.progress[0])
            self._publish(self.active[chunk.uid])
        for response in tokens:
            answer = self.active[response.uid]
            answer.accept(response.token)
            self._publish(answer)
            if answer.finish_reason is not None:
                del self.active[response.uid]
                if response.finish_reason is None:
                    self._generator.remove([response.uid])

    def _publish(self, answer: Answer) -> None:
        for event in answer.take_events():
            self.tell(event)

    def tell(self, event: types.Event) -> None:
        """Keep a completion, and pass every event on."""
        if isinstance(event, types.DoneEvent):
            self.completions.append(event.completion)
        self._on_event(event)


def _network(model: types.Model) -> Any:
    if not isinstance(model, MlxLmModel):
        raise types.UserError("this model is not mlx-lm's: build it with the same solution's build_model")
    return model.network


def _stream() -> mx.Stream:
    # mlx-lm's own stream is on the default device at the time of its import.
    return mx.default_stream(mx.default_device())


def _sampler(sampling: types.SamplingParams) -> Sampler:
    """mlx-lm's filters, with the meaning they have here, and a seed for each request."""
    if sampling.temperature == 0:
        # The same function object, because mlx-lm samples a batch at once if all rows share it.
        greedy: Sampler = sample_utils.greedy_sampler
        return greedy
    key = mx.random.key(sampling.seed)

    def sample(logprobs: mx.array) -> mx.array:
        nonlocal key
        key, draw = mx.random.split(key)
        scores = logprobs.astype(mx.float32) / sampling.temperature
        if 0 < sampling.top_k < scores.shape[-1]:
            scores = sample_utils.apply_top_k(scores, sampling.top_k)
        scores -= mx.logsumexp(scores, axis=-1, keepdims=True)
        if sampling.top_p < 1:
            scores = sample_utils.apply_top_p(scores, sampling.top_p)
        if sampling.min_p > 0:
            scores = sample_utils.apply_min_p(scores, sampling.min_p)
        return mx.random.categorical(scores, key=draw)

    return sample
