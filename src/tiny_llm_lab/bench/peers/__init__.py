"""Other engines, measured beside ours: what each needs, and in which variants it runs."""

import importlib.util
import json
from dataclasses import asdict, dataclass
from typing import Final

from tiny_llm_lab.models.parameters import EMBEDDING, parameter_shapes
from tiny_llm_lab.types import ModelConfig

# The most tokens of a warm-up prompt, in every engine alike.
WARM_UP_TOKENS: Final = 128


@dataclass(frozen=True)
class PeerSpec:
    """What a peer is asked to do: the shape of the model, with random weights of the peer's own."""

    config: ModelConfig
    variant: str
    prompt_len: int
    output_len: int
    batch: int
    threads: int
    seed: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "PeerSpec":
        value = json.loads(text)
        config = value["config"] | {"mlp_only_layers": tuple(value["config"]["mlp_only_layers"])}
        return PeerSpec(**value | {"config": ModelConfig(**config)})


@dataclass(frozen=True)
class Peer:
    """An engine; `module` answers a PeerSpec on stdin, `prepare` makes files before anything is timed."""

    module: str
    requires: tuple[str, ...]
    packages: str
    variants: tuple[str, ...]
    prepare: str | None = None

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
        prepare="tiny_llm_lab.bench.peers.gguf_file",
    ),
    "torch": Peer(
        "tiny_llm_lab.bench.peers.torch_cpu",
        ("torch", "transformers"),
        "torch transformers",
        ("bfloat16", "float32"),
    ),
}


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
