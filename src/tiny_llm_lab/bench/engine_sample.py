"""One measurement of a solution: `python -m tiny_llm_lab.bench.engine_sample < spec.json`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import mlx.core as mx
import numpy as np

from tiny_llm_lab.commands.options import Loaded, load
from tiny_llm_lab.models.parameters import EMBEDDING
from tiny_llm_lab.types import (
    Checkpoint,
    Completion,
    Event,
    Prompt,
    QuantizedWeights,
    SamplingParams,
    UserError,
    Weight,
)

from .rates import rates_of
from .reply import reply

WARM_UP_TOKENS: Final = 128
_WARM_UP_SHORT: Final = 8


@dataclass(frozen=True)
class EngineSpec:
    """All that decides a measurement: `batch` prompts of `prompt_len` random tokens, all there at once."""

    model: str
    solution: str
    device: str | None
    dtype: str | None
    prompt_len: int
    output_len: int
    batch: int
    prefill_step: int
    seed: int = 0
    activation_bits: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def measure(spec: EngineSpec) -> dict[str, Any]:
    """Load, warm up, run once."""
    loaded = load(spec.model, spec.solution, spec.device, spec.dtype, activation_bits=spec.activation_bits)
    config = loaded.model.config
    longest = spec.prompt_len + spec.output_len
    if longest > config.max_position_embeddings:
        raise UserError(
            f"--prompt-len and --output-len make {longest} tokens; "
            f"the model takes {config.max_position_embeddings}: shorten them"
        )
    draw = np.random.default_rng(spec.seed)
    lengths = [min(spec.prompt_len, WARM_UP_TOKENS)] + [min(spec.prompt_len, _WARM_UP_SHORT)] * (
        spec.batch - 1
    )
    _serve(loaded, spec, [draw.integers(0, config.vocab_size, length).tolist() for length in lengths], 3)
    prompts = [draw.integers(0, config.vocab_size, spec.prompt_len).tolist() for _ in range(spec.batch)]
    events, completions = _serve(loaded, spec, prompts, spec.output_len)
    _check(spec, completions)
    facts = {
        "device": str(mx.default_device().type).split(".")[-1],
        "dtype": str(loaded.checkpoint.dtype).split(".")[-1],
    }
    return asdict(rates_of(events, completions)) | {
        "weights_bytes": weights_bytes(loaded.checkpoint),
        "kv_bytes_per_token": kv_bytes_per_token(loaded.checkpoint),
        "facts": facts,
    }


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


def _serve(
    loaded: Loaded, spec: EngineSpec, prompts: Sequence[Sequence[int]], output_len: int
) -> tuple[list[Event], list[Completion]]:
    # Token times need no extra synchronisation: a token is a Python int, so its step has been computed.
    sampling = SamplingParams(max_tokens=output_len, ignore_eos=True)
    events: list[Event] = []
    completions = loaded.solution.batch_generate(
        loaded.model,
        loaded.checkpoint.tokenizer,
        [Prompt(tokens, sampling) for tokens in prompts],
        max_seq_len=spec.prompt_len + spec.output_len,
        batch_size=spec.batch,
        prefill_step=spec.prefill_step,
        on_event=events.append,
    )
    return events, completions


def _check(spec: EngineSpec, completions: Sequence[Completion]) -> None:
    """Every request did exactly the work that was asked for; otherwise runs cannot be compared."""
    if len(completions) != spec.batch:
        raise UserError(f"the solution returned {len(completions)} completions for {spec.batch} prompts")
    for idx, done in enumerate(completions):
        got = len(done.timing.token_s)
        if done.error or done.num_prompt_tokens != spec.prompt_len or got != spec.output_len:
            reason = done.error or f"answered {got} tokens instead of {spec.output_len}"
            raise UserError(f"request {idx} of the benchmark: {reason}")


if __name__ == "__main__":
    sys.exit(reply(lambda text: measure(EngineSpec(**json.loads(text)))))
