"""OpenVINO GenAI, in its own python."""

import time
from typing import Any

import numpy as np

from benchmarks.peers import plain_model


def make(folder: str, shape: dict[str, Any], weights: str, tokenizer: str) -> None:
    """Write a model of `shape` with random weights to `folder`, as optimum-cli exports it."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    packings: dict[str, dict[str, Any]] = {
        "int4": {"bits": 4, "sym": True, "group_size": 64, "ratio": 1.0},
        "int8": {"bits": 8},
    }
    options: dict[str, Any] = {"load_in_8bit": False}  # otherwise it packs every large model
    if weights in packings:
        options = {"quantization_config": OVWeightQuantizationConfig(**packings[weights])}
    plain = plain_model.write(folder, shape, "")
    OVModelForCausalLM.from_pretrained(plain, export=True, compile=False, **options).save_pretrained(folder)


def measure(
    path: str, lengths: list[int], streams: int, vocab_size: int, seed: int, threads: int, options: list[str]
) -> dict[str, Any]:
    """As `turns.measure`, but by `LLMPipeline`, which says itself how long it took."""
    import openvino
    import openvino_genai as genai

    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if "bfloat16" in options:
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0  # activations stay what they are
    pipeline = genai.LLMPipeline(path, "CPU", PERFORMANCE_HINT="LATENCY", **settings)
    draw = np.random.default_rng(seed)

    def run(prompt_len: int, max_tokens: int) -> tuple[float, Any]:
        ids = draw.integers(0, vocab_size, (streams, prompt_len))
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        config = genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, do_sample=False)
        config.set_eos_token_id(0)  # it insists on one
        start_s = time.perf_counter()
        done = pipeline.generate(inputs, config)
        return time.perf_counter() - start_s, done.perf_metrics.raw_metrics

    warm_up_len, prompt_len, max_tokens = lengths
    run(warm_up_len, 3)
    took_s, raw = run(prompt_len, max_tokens)
    return {
        "took_s": took_s,
        "prefill_s": [raw.m_times_to_first_token[0] / 1e6],
        "steps_s": (np.diff(raw.m_new_token_times) / 1e3).tolist(),
        "version": openvino.__version__.split("-")[0],
    }
