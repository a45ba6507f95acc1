"""One measurement of a solution or another engine, in a process of its own."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.measure.bench.peer import NO_PEERS, Peer, num_kv_numbers, read_share, run_peer
from tiny_llm_lab.measure.bench.run import Run, chunks_of, chunks_of_steps, start_of, timings_of
from tiny_llm_lab.measure.bench.spec import Spec, prompts_of
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.kv_memory import require_dense_fit
from tiny_llm_lab.runtime.solution import load_loop_policies, load_serving
from tiny_llm_lab.serving.building import build_engine
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.serving.options.loop_options import chunk_arguments
from tiny_llm_lab.serving.options.model_options import Loaded, load
from tiny_llm_lab.types import (
    Checkpoint,
    Event,
    Prompt,
    SchedulerConfig,
    StepPlan,
    StepStats,
    TokenEvent,
    UserError,
)


class Pace:
    """Lets `prompts` arrive, as the `on_event` of their run. A loop reads arrival_s until a prompt is due."""

    def __init__(self, requests: Sequence[Request], prompts: Sequence[Prompt]) -> None:
        self._start_s, self._num_tokens = time.perf_counter(), 0
        self._waiting = [pair for pair in zip(requests, prompts, strict=True) if pair[0].after_tokens]
        for _, prompt in self._waiting:
            _arrive(prompt, float("inf"))

    def __call__(self, event: Event) -> None:
        if not isinstance(event, TokenEvent) or event.prompt_idx or event.token_id is None:
            return
        self._num_tokens += 1
        now_s = event.time_s - self._start_s
        for request, prompt in self._waiting:
            if request.after_tokens == self._num_tokens:
                _arrive(prompt, now_s + request.arrival_s)


def _arrive(prompt: Prompt, arrival_s: float) -> None:
    # Prompts are frozen for everybody else: a queue keeps the object that it was given.
    object.__setattr__(prompt, "arrival_s", arrival_s)


_WARM_UP_CHUNKS, _WARM_UP_CHUNK, _WARM_UP_SHORT, _WARM_UP_ANSWER = 2, 128, 8, 3
_BLOCK_SIZE: Final = 16


def measure(spec: Spec, peers: Mapping[str, Peer] = NO_PEERS) -> Run:
    """Load, warm up, serve the requests once, with a solution or the peer of its name."""
    if peer := peers.get(spec.solution):
        return run_peer(spec, peer.measure)
    chosen = (spec.model, spec.solution, spec.device, spec.dtype)
    loaded = load(ModelSettings(*chosen, activation_bits=spec.activation_bits))
    limit = loaded.model.config.max_position_embeddings
    if spec.longest > limit:
        raise UserError(
            f"a request has {spec.longest} tokens with its answer and the model takes {limit}: shorten it"
        )
    num_rows, cure = min(spec.batch_size, len(spec.requests)), "choose fewer or shorter requests"
    require_dense_fit(loaded.model.config, loaded.checkpoint.dtype, num_rows, spec.longest, cure)
    serve = _serve_with_loop if spec.schedule.prefill_step else _serve_with_engine
    serve(loaded, replace(spec, requests=_warm_up(spec)))
    held_bytes = free_memory()
    run = serve(loaded, spec)
    return replace(
        run,
        weights_bytes=weights_bytes(loaded.checkpoint, num_rows),
        kv_bytes_per_token=num_kv_numbers(loaded.checkpoint.config) * loaded.checkpoint.dtype.size,
        state_bytes=loaded.checkpoint.config.state_bytes,
        facts={
            "device": _last(mx.default_device().type),
            "dtype": _last(loaded.checkpoint.dtype),
            "activation_bits": str(loaded.activation_bits),
        },
        peak_bytes=mx.get_peak_memory() - held_bytes,
    )


def free_memory() -> int:
    """Free the last run's memory and begin a new peak; returns the bytes still in use."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    return int(mx.get_active_memory())


def _last(name: object) -> str:
    return str(name).split(".")[-1]


def _warm_up(spec: Spec) -> tuple[Request, ...]:
    """Few requests of the same kind: they compile kernels and touch memory."""
    longest = max(spec.requests, key=lambda request: request.prompt_len)
    most = _WARM_UP_CHUNKS * min(spec.schedule.max_chunk, _WARM_UP_CHUNK)
    sizes = [most] + [_WARM_UP_SHORT] * (min(spec.batch_size, len(spec.requests)) - 1)
    answer = min(_WARM_UP_ANSWER, longest.max_tokens)
    return tuple(Request("early", min(size, longest.prompt_len), answer) for size in sizes)


class CountingNetwork:
    """A network that counts the tokens it is given, padding included, and is otherwise the one inside."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.num_tokens = 0

    def __call__(self, tokens: mx.array, *args: Any, **kwargs: Any) -> Any:
        self.num_tokens += tokens.size
        return self._network(tokens, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def _serve_with_loop(loaded: Loaded, spec: Spec) -> Run:
    # Token times need no extra synchronisation, because a token is a Python int and so its step is done.
    events: list[Event] = []
    model: Any = loaded.model
    counted = CountingNetwork(model.network) if spec.solution == "mlx-lm" else None
    prompts = prompts_of(spec.requests, model.config.vocab_size, spec.seed, spec.sampling)
    pace = Pace(spec.requests, prompts)

    def on_event(event: Event) -> None:
        events.append(event)
        pace(event)

    completions = loaded.solution.batch_generate(
        type(model)(model.config, counted) if counted else model,
        loaded.checkpoint.tokenizer,
        prompts,
        max_seq_len=spec.longest,
        batch_size=spec.batch_size,
        **chunk_settings(spec),
        on_event=on_event,
        async_scheduling=spec.async_scheduling,
    )
    timings = timings_of(spec.requests, completions)
    chunks = chunks_of(events, start_of(spec.requests, completions), timings)
    return Run(spec.requests, timings, chunks, num_computed_tokens=counted.num_tokens if counted else None)


def chunk_settings(spec: Spec) -> dict[str, Any]:
    """The arguments of `batch_generate` that set the chunk size."""
    schedule = spec.schedule
    if schedule.policy == "fixed":
        return {"prefill_step": schedule.prefill_step}
    llm = load_loop_policies(spec.solution)
    return chunk_arguments(llm, schedule.policy, schedule.prefill_step, schedule.target_ms / 1e3)


def _serve_with_engine(loaded: Loaded, spec: Spec) -> Run:
    llm, steps = load_serving(spec.solution), list[tuple[StepPlan, StepStats]]()
    # All running requests fit, so none is ever preempted.
    num_blocks = [-(-request.num_tokens // _BLOCK_SIZE) for request in spec.requests]
    settings = EngineSettings(
        config_of(spec),
        block_size=_BLOCK_SIZE,
        enable_prefix_caching=False,
        async_scheduling=spec.async_scheduling,
        num_blocks=min(sum(num_blocks), spec.batch_size * max(num_blocks)),
    )
    engine = build_engine(llm, loaded, settings, on_step=lambda plan, stats: steps.append((plan, stats)))
    try:
        prompts = prompts_of(spec.requests, loaded.model.config.vocab_size, spec.seed, spec.sampling)
        completions = engine.generate(prompts, Pace(spec.requests, prompts))
    finally:
        engine.release()
    timings = timings_of(spec.requests, completions)
    return Run(
        spec.requests,
        timings,
        chunks_of_steps(steps, spec.requests, start_of(spec.requests, completions), timings),
        num_computed_tokens=sum(plan.total_num_scheduled_tokens for plan, _ in steps),
    )


def config_of(spec: Spec) -> SchedulerConfig:
    """The engine's scheduler; raises UserError for settings that do not fit together."""
    return SchedulerConfig(
        max_num_batched_tokens=spec.schedule.budget,
        max_num_seqs=spec.batch_size,
        max_model_len=spec.longest,
        long_prefill_token_threshold=spec.schedule.threshold,
    )


def weights_bytes(checkpoint: Checkpoint, num_rows: int = 1) -> int:
    """Bytes of weights that a decode step of `num_rows` tokens reads; see `read_share`."""
    config, weights = checkpoint.config, checkpoint.weights
    return round(sum(each.nbytes * read_share(name, config, num_rows) for name, each in weights.items()))
