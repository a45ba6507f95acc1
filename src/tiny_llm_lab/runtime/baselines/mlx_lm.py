"""mlx-lm with the interface of a solution, so that every benchmark can print mine | ref | mlx-lm.

Loops, masks, caches and kernels are its own. Ours are the arrivals of prompts, the limits and the events.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

import mlx.core as mx
from mlx_lm import sample_utils
from mlx_lm.generate import BatchGenerator, generate_step, wired_limit

from tiny_llm_lab.runtime.baselines.answer import Answer, check_limits
from tiny_llm_lab.runtime.baselines.mlx_lm_model import MlxLmModel, build_model
from tiny_llm_lab.types import (
    Arrival,
    Arrivals,
    BatchKeywords,
    BatchSettings,
    Completion,
    DoneEvent,
    Event,
    EventCallback,
    Model,
    ModelConfig,
    Prompt,
    SamplingParams,
    Tokenizer,
    UserError,
    prompt_token_ids,
)

__all__ = ["batch_generate", "build_model", "stream_generate"]

_UNUSED = ("prefill_memory", "chunk_policy", "prefill_policy", "metrics")

Sampler = Callable[[mx.array], mx.array]


def stream_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    sampling: SamplingParams = SamplingParams(),
    *,
    prefill_step: int = 128,
    max_seq_len: int | None = None,
    async_scheduling: bool | None = None,
) -> Iterator[Event]:
    """Answer one prompt with mlx-lm's `generate_step`, yielding every event, DoneEvent last.

    mlx-lm computes the last prompt token by itself; events of the chunks come with the first token.
    `async_scheduling` changes nothing: mlx-lm always begins a step before it reads the one in front.
    """
    network = _network(model)
    limit = model.config.max_position_embeddings if max_seq_len is None else max_seq_len
    check_limits(model.config, limit, prefill_step)
    tokens = prompt_token_ids(tokenizer, prompt, model.config)
    arrival = Arrival(0, Prompt(tokens, sampling), time.perf_counter())
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
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int] | Prompt],
    **keywords: Unpack[BatchKeywords],
) -> list[Completion]:
    """Answer every prompt with mlx-lm's `BatchGenerator`; one completion per prompt, in prompt order.

    It computes several prompts at once, each at most `prefill_step` tokens further between two decode
    steps. Limits, errors and events are a solution's; see `batch_generate` of the reference.
    `async_scheduling` changes nothing: mlx-lm always launches a step before it reads the last one. Raises
    UserError for policies and metrics: mlx-lm can't use them.
    """
    if unused := [name for name, given in keywords.items() if name in _UNUSED and given is not None]:
        raise UserError(f"mlx-lm has its own scheduling: leave out {unused[0]}")
    settings = BatchSettings().updated(**keywords)
    settings.require_valid(model.config)
    arrivals = Arrivals(prompts, settings.sampling, settings.clock)
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
    run: "_BatchRun", arrival: Arrival, tokenizer: Tokenizer, config: ModelConfig, settings: BatchSettings
) -> None:
    num_tokens = 0
    try:
        tokens = prompt_token_ids(tokenizer, arrival.prompt.content, config)
        num_tokens = len(tokens)
        run.add(Answer(arrival, tokens, tokenizer, settings.max_seq_len, settings.clock))
    except UserError as error:
        run.tell(DoneEvent(arrival.refused(error, num_tokens)))


class _BatchRun:
    """One call of `batch_generate`: the answers in progress, and the finished ones."""

    def __init__(self, generator: BatchGenerator, on_event: EventCallback) -> None:
        self.active: dict[int, Answer] = {}  # by mlx-lm's uid
        self.completions: list[Completion] = []
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

    def tell(self, event: Event) -> None:
        """Keep a completion, and pass every event on."""
        if isinstance(event, DoneEvent):
            self.completions.append(event.completion)
        self._on_event(event)


def _network(model: Model) -> Any:
    if not isinstance(model, MlxLmModel):
        raise UserError("this model is not mlx-lm's: build it with the same solution's build_model")
    return model.network


def _stream() -> mx.Stream:
    # mlx-lm's own stream is on the default device at the time of its import.
    return mx.default_stream(mx.default_device())


def _sampler(sampling: SamplingParams) -> Sampler:
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
