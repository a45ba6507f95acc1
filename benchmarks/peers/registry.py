"""Which engines we can compare with, what each needs, and in which variants it runs."""

from collections.abc import Mapping
from typing import Final

from benchmarks.peers import llama_cpp, torch_cpu
from benchmarks.peers.gguf_file import find_or_make
from benchmarks.peers.other_python import OtherPython
from tiny_llm_lab.measure.bench.peer import Peer


def _gguf(bits: int) -> tuple[str, ...]:
    """llama.cpp's formats for a model of `bits`: one of as many bits and BF16, each also with fa."""
    packed = "Q4_0" if bits <= 4 else "Q8_0"
    formats = ("BF16",) if bits == 16 else (packed, "BF16")
    return tuple(variant for each in formats for variant in (f"{each} fa", each))


def _ik_gguf(bits: int) -> tuple[str, ...]:
    """ik_llama.cpp's: repacked, without BF16 unless the model has 16 bits."""
    return _gguf(bits)[:2]


def _integers(bits: int) -> tuple[str, ...]:
    """Packed weights with 8-bit activations; other engines have none of 16 bits on a CPU."""
    return ("int4" if bits <= 4 else "int8",)


def openvino_formats(bits: int) -> tuple[str, ...]:
    """Its weights for a model of `bits`; packed ones as they come, with 8-bit activations, and without."""
    if bits == 16:
        return ("bf16",)
    (packed,) = _integers(bits)
    return (packed, f"{packed} bfloat16")


OPENVINO: Final = OtherPython(
    "openvino", "optimum-intel[openvino] openvino-genai", openvino_formats, 1, "openvino_model.bin"
)
_GENAI: Final = "onnxruntime-genai onnx onnx_ir torch transformers"
_LLMEXPORT: Final = "MNN llmexport torch transformers onnx"
_OTHERS: Final = (
    OPENVINO,
    OtherPython("onnxruntime", _GENAI, _integers, 4, "model.onnx.data"),
    OtherPython("mnn", _LLMEXPORT, _integers, 4, "llm.mnn.weight"),
    OtherPython("ik_llama.cpp", "ik-llama-cpp-python", _ik_gguf, 2, write=find_or_make),
)

PEERS: Final[Mapping[str, Peer]] = {
    "llama.cpp": Peer(llama_cpp.measure, ("llama_cpp", "gguf"), "llama-cpp-python gguf", _gguf),
    "torch": Peer(torch_cpu.measure, ("torch", "transformers"), "torch transformers", torch_cpu.dtypes),
    **{other.name: other.peer for other in _OTHERS},
}
