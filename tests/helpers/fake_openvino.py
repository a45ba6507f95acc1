"""Stands in for a python with OpenVINO: runs a program with modules that say how long they took.

Their clock is no real one. A prompt token takes 1 ms of one thread, twice that without 8-bit activations,
and each row of a step 10 ms. They log to stdout, as the real ones do.
"""

import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

STEP_S = 0.01
TOKEN_S = 0.001
BIN_BYTES = 1000
clock = SimpleNamespace(now_s=100.0)


class Saved:
    """A model as a folder that says what it is made of."""

    def __init__(self, *said: object) -> None:
        print("INFO: made")
        self.said = " ".join(map(str, said))

    def save_pretrained(self, folder: str) -> None:
        Path(folder).mkdir()
        (Path(folder) / "said").write_text(self.said)
        (Path(folder) / "openvino_model.bin").write_bytes(bytes(BIN_BYTES))


def from_config(shape: object, dtype: str) -> Saved:
    return Saved(shape, dtype)


def from_pretrained(plain: str, export: bool, compile: bool, **options: object) -> Saved:
    return Saved((Path(plain) / "said").read_text(), options)


class Pipeline:
    """Takes as long as its options and inputs ask for."""

    def __init__(self, folder: str, device: str, INFERENCE_NUM_THREADS: int, **options: object) -> None:
        assert (Path(folder) / "openvino_model.bin").exists() and device == "CPU"
        halves = 2 if options.get("DYNAMIC_QUANTIZATION_GROUP_SIZE") == 0 else 1
        self.token_s = TOKEN_S * halves / INFERENCE_NUM_THREADS

    def generate(self, inputs: Any, config: Any) -> Any:
        rows, length = inputs.ids.shape
        assert inputs.mask.all() and config.ignore_eos and config.eos == 0
        assert len({bytes(row) for row in inputs.ids}) == rows, "equal prompts are in the prefix cache"
        start_s, prefill_s = clock.now_s, rows * length * self.token_s
        times = [start_s + prefill_s + step * rows * STEP_S for step in range(config.max_new_tokens)]
        clock.now_s = times[-1]
        self.m_times_to_first_token = [prefill_s * 1e6]
        self.m_new_token_times = [each * 1e3 for each in times]
        return SimpleNamespace(perf_metrics=SimpleNamespace(raw_metrics=self))


class Inputs(NamedTuple):
    ids: Any
    mask: Any


class Config(SimpleNamespace):
    def set_eos_token_id(self, token: int) -> None:
        self.eos = token


if __name__ == "__main__":
    maker = SimpleNamespace(for_model=dict, from_config=from_config, from_pretrained=from_pretrained)
    given: dict[str, dict[str, Any]] = {
        "torch": {"manual_seed": print, "bfloat16": "bfloat16"},
        "transformers": {"AutoConfig": maker, "AutoModelForCausalLM": maker},
        "optimum.intel": {"OVModelForCausalLM": maker, "OVWeightQuantizationConfig": dict},
        "openvino": {"Tensor": lambda array: array, "__version__": "2026.4-releases"},
        "openvino_genai": {"LLMPipeline": Pipeline, "GenerationConfig": Config, "TokenizedInputs": Inputs},
    }
    sys.modules |= {name: SimpleNamespace(**has) for name, has in {"optimum": {}, **given}.items()}
    time.perf_counter = lambda: clock.now_s
    runpy.run_path(sys.argv[-1], run_name="__main__")
