"""Which engines we can compare with, what each needs, and in which variants it runs."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.measure.bench.peers import PeerTimes, llama_cpp, openvino, torch_cpu
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.types import ModelConfig


@dataclass(frozen=True)
class Peer:
    """An engine; `measure` imports its packages. `variants` are its versions for a model of so many bits.

    Where `variable` is not empty, that environment variable names the python that has the packages.
    """

    measure: Callable[[Spec, ModelConfig], PeerTimes]
    requires: tuple[str, ...]
    packages: str
    variants: Callable[[int], tuple[str, ...]]
    variable: str = ""

    def missing(self) -> str | None:
        """The missing packages, with the cure; None if there are none."""
        if self.variable:
            cure = f"give it a python of its own with {self.packages} (see CONTRIBUTING.md)"
            return None if os.environ.get(self.variable) else f"{self.variable} is not set: {cure}"
        absent = [name for name in self.requires if importlib.util.find_spec(name) is None]
        if not absent:
            return None
        return f"{' and '.join(absent)} not installed: run pip install {self.packages} (see CONTRIBUTING.md)"


def _formats(bits: int) -> tuple[str, ...]:
    """llama.cpp's formats for a model of `bits`: one of as many bits and BF16, each also with fa."""
    packed = "Q4_0" if bits <= 4 else "Q8_0"
    formats = ("BF16",) if bits == 16 else (packed, "BF16")
    return tuple(variant for each in formats for variant in (f"{each} fa", each))


PEERS: Final = {
    "llama.cpp": Peer(llama_cpp.measure, ("llama_cpp", "gguf"), "llama-cpp-python gguf", _formats),
    "torch": Peer(
        torch_cpu.measure,
        ("torch", "transformers"),
        "torch transformers",
        lambda bits: ("bfloat16", "float32"),
    ),
    "openvino": Peer(
        openvino.measure,
        (),
        "optimum-intel[openvino] openvino-genai",
        openvino.formats,
        openvino.PYTHON_VARIABLE,
    ),
}
