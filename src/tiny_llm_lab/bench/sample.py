"""One measurement of a solution in a fresh process: `python -m tiny_llm_lab.bench.sample < spec.json`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, cast

import mlx.core as mx

from tiny_llm_lab.commands.options import Loaded, load
from tiny_llm_lab.models.parameters import EMBEDDING
from tiny_llm_lab.solution import load_serving
from tiny_llm_lab.types import (
    Checkpoint,
    Event,
    PagedModel,
    QuantizedWeights,
    SchedulerConfig,
    UserError,
    Weight,
)

from .child import reply
from .run import Request, Run, chunks_of, prompts_of, start_of, timings_of
from .step_log import StepLog

MODULE: Final = "tiny_llm_lab.bench.sample"
_WARM_UP_CHUNKS, _WARM_UP_CHUNK, _WARM_UP_SHORT, _WARM_UP_ANSWER = 2, 128, 8, 3
_BLOCK_SIZE: Final = 16


@dataclass(frozen=True)
class Schedule:
    """How prompts are cut: by the batch loop's prefill_step, or, where that is 0, by the engine."""

    prefill_step: int = 0
    budget: int = 0  # max_num_batched_tokens
    threshold: int = 0  # long_prefill_token_threshold

    @property
    def name(self) -> str:
        if self.prefill_step:
            return f"prefill_step {self.prefill_step}"
        return f"budget {self.budget}" + (f", threshold {self.threshold}" if self.threshold else "")

    @property
    def max_chunk(self) -> int:
        """The most tokens of one prompt in one step."""
        return self.prefill_step or min(self.budget, self.threshold or self.budget)


@dataclass(frozen=True)
class Spec:
    """All that decides a measurement."""

    model: str
    solution: str
    device: str | None
    dtype: str | None
    schedule: Schedule
    batch_size: int
    requests: tuple[Request, ...]
    seed: int = 0
    activation_bits: int | None = None

    @property
    def longest(self) -> int:
        return max(request.num_tokens for request in self.requests)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Spec":
        value = json.loads(text)
        requests = tuple(Request(**request) for request in value.pop("requests"))
        return Spec(**value | {"schedule": Schedule(**value["schedule"]), "requests": requests})


def measure(spec: Spec) -> dict[str, Any]:
    """Load, warm up, serve the requests once: the run, and facts about what was loaded."""
    loaded = load(spec.model, spec.solution, spec.device, spec.dtype, activation_bits=spec.activation_bits)
    limit = loaded.model.config.max_position_embeddings
    if spec.longest > limit:
        raise UserError(
            f"a request of {spec.longest} tokens, prompt and answer; the model takes {limit}: shorten it"
        )
    _serve(loaded, replace(spec, requests=_warm_up(spec)))
    run = _serve(loaded, spec)
    facts = {
        "device": str(mx.default_device().type).split(".")[-1],
        "dtype": str(loaded.checkpoint.dtype).split(".")[-1],
    }
    return run.to_json() | {
        "weights_bytes": weights_bytes(loaded.checkpoint),
        "kv_bytes_per_token": kv_bytes_per_token(loaded.checkpoint),
        "facts": facts,
    }


def _warm_up(spec: Spec) -> tuple[Request, ...]:
    """Few requests of the same kind: they compile kernels and touch memory."""
    longest = max(spec.requests, key=lambda request: request.prompt_len)
    most = _WARM_UP_CHUNKS * min(spec.schedule.max_chunk, _WARM_UP_CHUNK)
    sizes = [most] + [_WARM_UP_SHORT] * (min(spec.batch_size, len(spec.requests)) - 1)
    answer = min(_WARM_UP_ANSWER, longest.max_tokens)
    return tuple(Request("early", min(size, longest.prompt_len), answer) for size in sizes)


def _serve(loaded: Loaded, spec: Spec) -> Run:
    # Token times need no extra synchronisation: a token is a Python int, so its step has been computed.
    if not spec.schedule.prefill_step:
        return _serve_with_engine(loaded, spec)
    events: list[Event] = []
    completions = loaded.solution.batch_generate(
        loaded.model,
        loaded.checkpoint.tokenizer,
        prompts_of(spec.requests, loaded.model.config.vocab_size, spec.seed),
        max_seq_len=spec.longest,
        batch_size=spec.batch_size,
        prefill_step=spec.schedule.prefill_step,
        on_event=events.append,
    )
    timings = timings_of(spec.requests, completions)
    return Run(spec.requests, timings, chunks_of(events, start_of(spec.requests, completions), timings))


def config_of(spec: Spec) -> SchedulerConfig:
    """The engine's scheduler; raises UserError for settings that do not fit together."""
    return SchedulerConfig(
        max_num_batched_tokens=spec.schedule.budget,
        max_num_seqs=spec.batch_size,
        max_model_len=spec.longest,
        long_prefill_token_threshold=spec.schedule.threshold,
    )


def _serve_with_engine(loaded: Loaded, spec: Spec) -> Run:
    engine = load_serving(spec.solution).Engine(
        cast(PagedModel, loaded.model),
        loaded.checkpoint.tokenizer,
        config_of(spec),
        num_blocks=blocks_for(spec.requests, _BLOCK_SIZE),
        block_size=_BLOCK_SIZE,
        enable_prefix_caching=False,
    )
    try:
        return serve_with_engine(engine, spec.requests, spec.seed)[0]
    finally:
        engine.release()


def blocks_for(requests: Sequence[Request], block_size: int) -> int:
    """Blocks that hold all requests at once: none is ever preempted."""
    return sum(-(-request.num_tokens // block_size) for request in requests)


def serve_with_engine(engine: Any, requests: Sequence[Request], seed: int = 0) -> tuple[Run, StepLog]:
    """The run of `requests`, which arrive at their times, and the steps that served them."""
    log = StepLog(engine)
    completions = engine.generate(prompts_of(requests, engine.model.config.vocab_size, seed))
    timings = timings_of(requests, completions)
    chunks = log.chunks(requests, start_of(requests, completions))
    return Run(tuple(requests), timings, chunks), log


def weights_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of weights that one decode step reads: all of them, but of an untied embedding only rows."""
    skipped = "" if checkpoint.config.tie_word_embeddings else f"{EMBEDDING}.weight"
    return sum(_num_bytes(weight) for name, weight in checkpoint.weights.items() if name != skipped)


def kv_bytes_per_token(checkpoint: Checkpoint) -> int:
    """Bytes of keys and values of one stored token, in all layers, as wide as the activations."""
    config = checkpoint.config
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return numbers * checkpoint.dtype.size


def _num_bytes(weight: Weight) -> int:
    if isinstance(weight, QuantizedWeights):
        return weight.weight.nbytes + weight.scales.nbytes + weight.biases.nbytes
    return weight.nbytes


if __name__ == "__main__":
    sys.exit(reply(lambda text: measure(Spec.from_json(text))))
