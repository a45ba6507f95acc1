"""Which engines we can compare with, what each needs, and in which variants it runs."""

from collections.abc import Mapping
from typing import Final

from benchmarks.peers import llama_cpp, openvino, torch_cpu
from tiny_llm_lab.measure.bench.peer import Peer


def _formats(bits: int) -> tuple[str, ...]:
    """llama.cpp's formats for a model of `bits`: one of as many bits and BF16, each also with fa."""
    packed = "Q4_0" if bits <= 4 else "Q8_0"
    formats = ("BF16",) if bits == 16 else (packed, "BF16")
    return tuple(variant for each in formats for variant in (f"{each} fa", each))


PEERS: Final[Mapping[str, Peer]] = {
    "llama.cpp": Peer(llama_cpp.measure, ("llama_cpp", "gguf"), "llama-cpp-python gguf", _formats),
    "torch": Peer(torch_cpu.measure, ("torch", "transformers"), "torch transformers", torch_cpu.dtypes),
    "openvino": Peer(
        openvino.measure,
        (),
        "optimum-intel[openvino] openvino-genai",
        openvino.formats,
        openvino.PYTHON_VARIABLE,
    ),
}
