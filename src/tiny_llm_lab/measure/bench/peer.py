"""Another engine, compared with ours on random weights of the same shape."""

import importlib.util
import math
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
from tiny_llm_lab.runtime.models.weights.layout import DRAFTS, EMBEDDING, EXPERTS, parameter_shapes
from tiny_llm_lab.runtime.models.weights.tower_layout import TOWER
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
        packages = " ".join(absent) if self.variable else self.packages  # the other python has its own
        return f"{' and '.join(absent)} not installed: run pip install {packages} (see CONTRIBUTING.md)"


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
        weights_bytes=int(num_read_weights(config, len(spec.requests)) * times.bytes_per_weight),
        kv_bytes_per_token=num_kv_numbers(config) * times.bytes_per_kv_number,
        state_bytes=config.state_bytes,
        facts={"version": times.version},
    )


def num_read_weights(config: ModelConfig, num_rows: int = 1) -> int:
    """Numbers in the matrices that a decode step of `num_rows` tokens reads; see `read_share`."""
    return round(
        sum(
            math.prod(shape) * read_share(name, config, num_rows)
            for name, shape in parameter_shapes(config)
            if len(shape) == 2 or EXPERTS in name
        )
    )


def read_share(name: str, config: ModelConfig, num_rows: int) -> float:
    """The part of a parameter that a decode step of `num_rows` tokens reads.

    That is nothing of drafts and pictures, and next to nothing of an untied embedding, of which it reads
    rows. Of the experts it is exact for one token. For more it is the mean if each token chose its experts
    evenly and by itself. Tokens that favour the same experts read less.
    """
    if name.startswith((DRAFTS, TOWER)) or (name == f"{EMBEDDING}.weight" and not config.tie_word_embeddings):
        return 0
    return 1 - (1 - config.num_experts_per_tok / config.num_experts) ** num_rows if EXPERTS in name else 1


def num_kv_numbers(config: ModelConfig) -> int:
    """Numbers that one stored token adds to the caches of all layers."""
    return 2 * config.num_kv_layers * config.num_key_value_heads * config.head_dim
