"""Another engine, compared with ours on random weights of the same shape."""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from tiny_llm_lab.measure.bench.run import Chunk, Run
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.weights.layout import EMBEDDING, parameter_shapes
from tiny_llm_lab.types import ModelConfig, Timing

# The most tokens of a warm-up prompt, in every engine alike.
WARM_UP_TOKENS: Final = 128


@dataclass(frozen=True)
class Peer:
    """An engine; `measure` imports its packages. `variants` are its versions for a model of so many bits.

    Where `variable` is not empty, that environment variable names the python that has the packages.
    """

    measure: Callable[[Spec, ModelConfig], "PeerTimes"]
    requires: tuple[str, ...]
    packages: str
    variants: Callable[[int], tuple[str, ...]]
    variable: str = ""

    def missing(self) -> str | None:
        """The missing packages, with the cure; None if there are none."""
        if self.variable and not os.environ.get(self.variable):
            cure = f"give it a python of its own with {self.packages} (see CONTRIBUTING.md)"
            return f"{self.variable} is not set: {cure}"
        absent = [name for name in self.requires if importlib.util.find_spec(name) is None]
        if not absent:
            return None
        return f"{' and '.join(absent)} not installed: run pip install {self.packages} (see CONTRIBUTING.md)"


NO_PEERS: Final[Mapping[str, Peer]] = MappingProxyType({})


@dataclass(frozen=True)
class PeerTimes:
    """Seconds of prefills, one after another, and of decode steps; and what the peer reads in a step."""

    prefill_s: Sequence[float]  # of all prompts together, or of each
    steps_s: Sequence[float]
    bytes_per_weight: float
    bytes_per_kv_number: int
    version: str


def run_peer(spec: Spec, measure: Callable[[Spec, ModelConfig], PeerTimes]) -> Run:
    """A run like a solution's, with rates computed the same way."""
    config, _ = read_config(find_folder(spec.model) / "config.json")
    return run_of(spec, config, measure(spec, config))


def run_of(spec: Spec, config: ModelConfig, times: PeerTimes) -> Run:
    """The run in which these times were measured; prompts computed together end together."""
    padding = [0.0] * (len(spec.requests) - len(times.prefill_s))
    prefill_s = [*times.prefill_s, *padding]
    ends_s = list(accumulate(prefill_s))
    later_s = list(accumulate(times.steps_s, initial=ends_s[-1]))[1:]
    chunks = [
        Chunk(idx, request.prompt_len, end_s - took_s, end_s)
        for idx, (request, took_s, end_s) in enumerate(zip(spec.requests, prefill_s, ends_s, strict=True))
    ]
    return Run(
        spec.requests,
        tuple(Timing(0.0, (end_s, *later_s)) for end_s in ends_s),
        tuple(chunks),
        weights_bytes=int(num_read_weights(config) * times.bytes_per_weight),
        kv_bytes_per_token=num_kv_numbers(config) * times.bytes_per_kv_number,
        state_bytes=config.state_bytes,
        facts={"version": times.version},
    )


def num_read_weights(config: ModelConfig) -> int:
    """Numbers in the matrices that one decode step reads; of an untied embedding it reads only rows."""
    return sum(
        shape[0] * shape[1]
        for name, shape in parameter_shapes(config)
        if len(shape) == 2 and (config.tie_word_embeddings or name != f"{EMBEDDING}.weight")
    )


def num_kv_numbers(config: ModelConfig) -> int:
    """Numbers that one stored token adds to the caches of all layers."""
    return 2 * config.num_kv_layers * config.num_key_value_heads * config.head_dim
