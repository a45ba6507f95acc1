"""Other engines, measured beside ours: what each needs, and in which variants it runs."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from tiny_llm_lab.bench.child import reply
from tiny_llm_lab.bench.run import Chunk, Run
from tiny_llm_lab.bench.spec import Spec
from tiny_llm_lab.models.config import read_config
from tiny_llm_lab.models.parameters import EMBEDDING, parameter_shapes
from tiny_llm_lab.models.registry import find_folder
from tiny_llm_lab.types import ModelConfig, Timing

# The most tokens of a warm-up prompt, in every engine alike.
WARM_UP_TOKENS: Final = 128


@dataclass(frozen=True)
class Peer:
    """An engine; `module` answers a Spec on stdin with a run of random weights of the model's shape."""

    module: str
    requires: tuple[str, ...]
    packages: str
    variants: tuple[str, ...]

    def missing(self) -> str | None:
        """What is not installed, with the cure; None when everything is."""
        absent = [name for name in self.requires if importlib.util.find_spec(name) is None]
        if not absent:
            return None
        return f"{' and '.join(absent)} not installed: pip install {self.packages} (see CONTRIBUTING.md)"


PEERS: Final = {
    "llama.cpp": Peer(
        "tiny_llm_lab.bench.peers.llama_cpp",
        ("llama_cpp", "gguf"),
        "llama-cpp-python gguf",
        ("Q4_0 fa", "Q4_0", "BF16 fa", "BF16"),
    ),
    "torch": Peer(
        "tiny_llm_lab.bench.peers.torch_cpu",
        ("torch", "transformers"),
        "torch transformers",
        ("bfloat16", "float32"),
    ),
}


@dataclass(frozen=True)
class PeerTimes:
    """What a peer's process measured: seconds of prefills, one after another, and of decode steps."""

    prefill_s: Sequence[float]  # of all prompts together, or of each
    steps_s: Sequence[float]
    bytes_per_weight: float
    bytes_per_kv_number: int
    version: str


def answer(measure: Callable[[Spec, ModelConfig], PeerTimes]) -> int:
    """The child's side: a run like that of a solution, whose rates are computed alike."""

    def measured(text: str) -> dict[str, Any]:
        spec = Spec.from_json(text)
        config, _ = read_config(find_folder(spec.model) / "config.json")
        times = measure(spec, config)
        return run_of(spec, times).to_json(
            weights_bytes=int(num_read_weights(config) * times.bytes_per_weight),
            kv_bytes_per_token=num_kv_numbers(config) * times.bytes_per_kv_number,
            facts={"version": times.version},
        )

    return reply(measured)


def run_of(spec: Spec, times: PeerTimes) -> Run:
    """The run in which these times were measured; prompts computed together end together."""
    padding = [0.0] * (len(spec.requests) - len(times.prefill_s))
    prefill_s = [*times.prefill_s, *padding]
    ends_s = list(accumulate(prefill_s))
    later_s = list(accumulate(times.steps_s, initial=ends_s[-1]))[1:]
    chunks = [
        Chunk(idx, request.prompt_len, end_s - took_s, end_s)
        for idx, (request, took_s, end_s) in enumerate(zip(spec.requests, prefill_s, ends_s, strict=True))
    ]
    timings = (Timing(0.0, (end_s, *later_s)) for end_s in ends_s)
    return Run(spec.requests, tuple(timings), tuple(chunks))


def num_read_weights(config: ModelConfig) -> int:
    """Numbers in the matrices that one decode step reads; of an untied embedding it reads only rows."""
    return sum(
        shape[0] * shape[1]
        for name, shape in parameter_shapes(config)
        if len(shape) == 2 and (config.tie_word_embeddings or name != f"{EMBEDDING}.weight")
    )


def num_kv_numbers(config: ModelConfig) -> int:
    """Numbers that one stored token adds to the caches of all layers."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
