"""One measurement of a solution in a fresh process: `python -m tiny_llm_lab.bench.sample < spec.json`."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import mlx.core as mx

from tiny_llm_lab.commands.options import Loaded, load
from tiny_llm_lab.models.parameters import EMBEDDING
from tiny_llm_lab.solution import load_serving
from tiny_llm_lab.types import (
    Checkpoint,
    Event,
    OnStep,
    PagedModel,
    QuantizedWeights,
    SchedulerConfig,
    StepPlan,
    StepStats,
    UserError,
    Weight,
)
from tiny_llm_lab.types.serving import Engine

from .child import reply
from .peers import num_kv_numbers
from .run import Run, chunks_of, chunks_of_steps, start_of, timings_of
from .spec import Request, Spec, prompts_of

MODULE: Final = "tiny_llm_lab.bench.sample"
_WARM_UP_CHUNKS, _WARM_UP_CHUNK, _WARM_UP_SHORT, _WARM_UP_ANSWER = 2, 128, 8, 3
_BLOCK_SIZE: Final = 16


def measure(spec: Spec) -> dict[str, Any]:
    """Load, warm up, serve the requests once: the run, and facts about what was loaded."""
    loaded = load(spec.model, spec.solution, spec.device, spec.dtype, activation_bits=spec.activation_bits)
    limit = loaded.model.config.max_position_embeddings
    if spec.longest > limit:
        raise UserError(
            f"a request of {spec.longest} tokens, prompt and answer; the model takes {limit}: shorten it"
        )
    serve = _serve_with_loop if spec.schedule.prefill_step else _serve_with_engine
    serve(loaded, replace(spec, requests=_warm_up(spec)))
    return serve(loaded, spec).to_json(
        weights_bytes=weights_bytes(loaded.checkpoint),
        kv_bytes_per_token=kv_bytes_per_token(loaded.checkpoint),
        facts={"device": _last(mx.default_device().type), "dtype": _last(loaded.checkpoint.dtype)},
    )


def _last(name: object) -> str:
    return str(name).split(".")[-1]


def _warm_up(spec: Spec) -> tuple[Request, ...]:
    """Few requests of the same kind: they compile kernels and touch memory."""
    longest = max(spec.requests, key=lambda request: request.prompt_len)
    most = _WARM_UP_CHUNKS * min(spec.schedule.max_chunk, _WARM_UP_CHUNK)
    sizes = [most] + [_WARM_UP_SHORT] * (min(spec.batch_size, len(spec.requests)) - 1)
    answer = min(_WARM_UP_ANSWER, longest.max_tokens)
    return tuple(Request("early", min(size, longest.prompt_len), answer) for size in sizes)


def _serve_with_loop(loaded: Loaded, spec: Spec) -> Run:
    # Token times need no extra synchronisation: a token is a Python int, so its step has been computed.
    events: list[Event] = []
    completions = loaded.solution.batch_generate(
        loaded.model,
        loaded.checkpoint.tokenizer,
        prompts_of(spec.requests, loaded.model.config.vocab_size, spec.seed),
        max_seq_len=spec.longest,
        batch_size=spec.batch_size,
        prefill_step=spec.schedule.prefill_step,
        on_event=events.append,
        async_scheduling=spec.async_scheduling,
    )
    timings = timings_of(spec.requests, completions)
    return Run(spec.requests, timings, chunks_of(events, start_of(spec.requests, completions), timings))


def _serve_with_engine(loaded: Loaded, spec: Spec) -> Run:
    def make(on_step: OnStep) -> Engine:
        return load_serving(spec.solution).Engine(
            cast(PagedModel, loaded.model),
            loaded.checkpoint.tokenizer,
            config_of(spec),
            # All requests fit at once: none is ever preempted.
            num_blocks=sum(-(-request.num_tokens // _BLOCK_SIZE) for request in spec.requests),
            block_size=_BLOCK_SIZE,
            enable_prefix_caching=False,
            async_scheduling=spec.async_scheduling,
            on_step=on_step,
        )

    return serve(make, spec.requests, loaded.model.config.vocab_size, spec.seed)[0]


def config_of(spec: Spec) -> SchedulerConfig:
    """The engine's scheduler; raises UserError for settings that do not fit together."""
    return SchedulerConfig(
        max_num_batched_tokens=spec.schedule.budget,
        max_num_seqs=spec.batch_size,
        max_model_len=spec.longest,
        long_prefill_token_threshold=spec.schedule.threshold,
    )


def serve(
    make: Callable[[OnStep], Engine], requests: Sequence[Request], vocab_size: int, seed: int = 0
) -> tuple[Run, int]:
    """The run of `requests` on a new engine, released at the end, and the number of tokens it computed."""
    steps: list[tuple[StepPlan, StepStats]] = []
    engine = make(lambda plan, stats: steps.append((plan, stats)))
    try:
        completions = engine.generate(prompts_of(requests, vocab_size, seed))
    finally:
        engine.release()
    timings = timings_of(requests, completions)
    chunks = chunks_of_steps(steps, requests, start_of(requests, completions), timings)
    return Run(tuple(requests), timings, chunks), sum(plan.total_num_scheduled_tokens for plan, _ in steps)


def weights_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of weights that one decode step reads: all of them, but of an untied embedding only rows."""
    skipped = "" if checkpoint.config.tie_word_embeddings else f"{EMBEDDING}.weight"
    return sum(_num_bytes(weight) for name, weight in checkpoint.weights.items() if name != skipped)


def kv_bytes_per_token(checkpoint: Checkpoint) -> int:
    """Bytes of keys and values of one stored token, in all layers, as wide as the activations."""
    return num_kv_numbers(checkpoint.config) * checkpoint.dtype.size


def _num_bytes(weight: Weight) -> int:
    if isinstance(weight, QuantizedWeights):
        return weight.weight.nbytes + weight.scales.nbytes + weight.biases.nbytes
    return weight.nbytes


if __name__ == "__main__":
    sys.exit(reply(lambda text: measure(Spec.from_json(text))))
