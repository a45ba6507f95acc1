"""Which engines can be measured beside ours, what each needs, and in which variants it runs."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.bench.spec import Spec
from tiny_llm_lab.types import ModelConfig

from . import PeerTimes, llama_cpp, torch_cpu


@dataclass(frozen=True)
class Peer:
    """An engine; `measure` imports its packages."""

    measure: Callable[[Spec, ModelConfig], PeerTimes]
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
        llama_cpp.measure,
        ("llama_cpp", "gguf"),
        "llama-cpp-python gguf",
        ("Q4_0 fa", "Q4_0", "BF16 fa", "BF16"),
    ),
    "torch": Peer(
        torch_cpu.measure, ("torch", "transformers"), "torch transformers", ("bfloat16", "float32")
    ),
}
