"""mlx-lm behind the seam, so that every benchmark can print mine | ref | mlx-lm.

Its own loops, masks, caches and kernels; ours are the prompts' arrivals, the limits and the events.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
from mlx_lm import sample_utils
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.utils import maybe_set_recommended_wired_limit

from tiny_llm_lab.baselines.answer import Answer, check_limits, checked_tokens
from tiny_llm_lab.baselines.mlx_lm_model import MlxLmModel, build_model
from tiny_llm_lab.types import (
    Clock,
    Completion,
    DoneEvent,
    Event,
    EventCallback,
    Model,
    Prompt,
    SamplingParams,
    Timing,
    Tokenizer,
    UserError,
)

__all__ = ["batch_generate", "build_model", "stream_generate"]

# Longest sleep while nothing has arrived, so that an interrupt is never far away.
_LONGEST_NAP_S = 0.05

Sampler = Callable[[mx.array], mx.array]


def stream_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    sampling: SamplingParams = SamplingParams(),
    *,
    prefill_step: int = 128,
    max_seq_len: int | None = None,
) -> Iterator[Event]:
    """Answer one prompt with mlx-lm's `generate_step`, yielding every event, DoneEvent last.

    mlx-lm computes the last prompt token by itself; events of the chunks come with the first token.
    """
    network_model = _of_mlx_lm(model)
    limit = model.config.max_position_embeddings if max_seq_len is None else max_seq_len
    check_limits(model.config, limit, prefill_step)
    tokens = checked_tokens(tokenizer, prompt, model.config, limit)
    answer = Answer(0, tokens, sampling, tokenizer, limit, time.perf_counter(), time.perf_counter)
    steps = generate_step(
        mx.array(tokens),
        network_model.network,
        _stream(),
        max_tokens=answer.max_tokens,
        sampler=_sampler(sampling),
        prefill_step_size=prefill_step,
        prompt_progress_callback=lambda done, _: answer.computed(done) if done else None,
    )
    old_limit = maybe_set_recommended_wired_limit()  # as BatchGenerator does: it counts on Metal
    try:
        for token, _ in steps:
            answer.accept(int(token))
            yield from answer.events
            answer.events.clear()
            if answer.finish_reason is not None:
                return
    finally:
        if old_limit is not None:
            mx.synchronize()
            mx.set_wired_limit(old_limit)


class _BatchRun:
    """One call of `batch_generate`: what waits here, and what mlx-lm works on."""

    def __init__(
        self,
        model: MlxLmModel,
        tokenizer: Tokenizer,
        prompts: list[Prompt],
        max_seq_len: int,
        batch_size: int,
        prefill_step: int,
        on_event: EventCallback | None,
        clock: Clock,
    ) -> None:
        self.queue = deque(sorted(enumerate(prompts), key=lambda numbered: numbered[1].arrival_s))
        self.active: dict[int, Answer] = {}  # by mlx-lm's uid
        self.completions: list[Completion] = []
        self.model, self.tokenizer = model, tokenizer
        self.max_seq_len, self.batch_size = max_seq_len, batch_size
        self.generator = BatchGenerator(
            model.network,
            completion_batch_size=batch_size,
            prefill_batch_size=batch_size,
            prefill_step_size=prefill_step,
            stream=_stream(),
        )
        self._on_event, self._clock = on_event, clock
        self._start_s = clock()

    def step(self) -> None:
        """Hand over what has arrived, then let mlx-lm advance everything once."""
        # mlx-lm counts prompts in prefill and in decode apart: unasked, it takes more than batch_size.
        while len(self.active) < self.batch_size and self._due_s() <= 0:
            self._insert(*self.queue.popleft())
        if not self.active:
            time.sleep(min(max(self._due_s(), 0), _LONGEST_NAP_S) if self.queue else 0)
            return
        chunks, tokens = self.generator.next()
        for chunk in chunks:
            answer = self.active[chunk.uid]
            answer.computed(chunk.progress[0])
            self._publish(answer)
        for response in tokens:
            answer = self.active[response.uid]
            answer.accept(response.token)
            self._publish(answer)
            if answer.finish_reason is not None:
                del self.active[response.uid]
                if response.finish_reason is None:
                    self.generator.remove([response.uid])

    def close(self) -> None:
        """Give the memory limit back; the caches go with the generator."""
        self.generator.close()
        self.active.clear()

    def _due_s(self) -> float:
        """Seconds until the next prompt arrives; infinite when there is none."""
        if not self.queue:
            return float("inf")
        return self.queue[0][1].arrival_s - (self._clock() - self._start_s)

    def _insert(self, prompt_idx: int, prompt: Prompt) -> None:
        arrival_s = self._start_s + prompt.arrival_s
        try:
            tokens = checked_tokens(self.tokenizer, prompt.content, self.model.config, self.max_seq_len)
        except UserError as error:
            failed = Completion(prompt_idx, 0, (), "", "error", Timing(arrival_s), str(error))
            self._tell(DoneEvent(failed))
            return
        answer = Answer(
            prompt_idx, tokens, prompt.sampling, self.tokenizer, self.max_seq_len, arrival_s, self._clock
        )
        (uid,) = self.generator.insert(
            [tokens], max_tokens=[answer.max_tokens], samplers=[_sampler(prompt.sampling)]
        )
        self.active[uid] = answer

    def _publish(self, answer: Answer) -> None:
        for event in answer.events:
            self._tell(event)
        answer.events.clear()

    def _tell(self, event: Event) -> None:
        if isinstance(event, DoneEvent):
            self.completions.append(event.completion)
        if self._on_event is not None:
            self._on_event(event)


def batch_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int] | Prompt],
    *,
    max_seq_len: int = 512,
    batch_size: int = 5,
    prefill_step: int = 128,
    sampling: SamplingParams = SamplingParams(),
    on_event: EventCallback | None = None,
    clock: Clock = time.perf_counter,
) -> list[Completion]:
    """Answer every prompt with mlx-lm's `BatchGenerator`; one completion per prompt, in prompt order.

    It computes several prompts at once, each at most `prefill_step` tokens further between two decode
    steps. Limits, errors and events are those of the seam; see `batch_generate` of the reference.
    """
    if isinstance(prompts, str):
        raise UserError("prompts is one string: pass a list of prompts")
    check_limits(model.config, max_seq_len, batch_size, prefill_step)
    full = [p if isinstance(p, Prompt) else Prompt(p, sampling) for p in prompts]
    run = _BatchRun(
        _of_mlx_lm(model), tokenizer, full, max_seq_len, batch_size, prefill_step, on_event, clock
    )
    try:
        while run.queue or run.active:
            run.step()
    finally:
        run.close()
    return sorted(run.completions, key=lambda completion: completion.prompt_idx)


def _of_mlx_lm(model: Model) -> MlxLmModel:
    if not isinstance(model, MlxLmModel):
        raise UserError("this model is not of mlx-lm: build it with build_model of the same solution")
    return model


def _stream() -> mx.Stream:
    # mlx-lm's own stream is on the device that was the default when mlx_lm was imported.
    return mx.default_stream(mx.default_device())


def _sampler(sampling: SamplingParams) -> Sampler:
    """mlx-lm's filters with the seam's meaning of them, and a seed for each request."""
    if sampling.temperature == 0:
        # The very function: mlx-lm samples a batch at once when all rows share it.
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
