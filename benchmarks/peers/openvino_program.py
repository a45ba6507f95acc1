"""A program for a python that has OpenVINO GenAI and none of our packages: `openvino` starts it by its path.

It reads a question in JSON from stdin, {"do": "make" or "measure", ...}, and writes the answer to stdout.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def make(folder: str, shape: dict[str, Any], weights: str) -> None:
    """Write a model of `shape` with random weights to `folder`, as optimum-cli exports it."""
    import torch
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import AutoConfig, AutoModelForCausalLM

    packings: dict[str, dict[str, Any]] = {
        "int4": {"bits": 4, "sym": True, "group_size": 64, "ratio": 1.0},
        "int8": {"bits": 8},
    }
    options: dict[str, Any] = {"load_in_8bit": False}  # otherwise it packs every large model
    if weights in packings:
        options = {"quantization_config": OVWeightQuantizationConfig(**packings[weights])}
    torch.manual_seed(0)
    plain = f"{folder}-plain"
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), dtype=torch.bfloat16)
    model.save_pretrained(plain)
    del model
    OVModelForCausalLM.from_pretrained(plain, export=True, compile=False, **options).save_pretrained(folder)


def measure(
    folder: str, lengths: list[int], streams: int, vocab_size: int, seed: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Seconds of `streams` equal prompts together and of each step behind them.

    `lengths` are tokens in a prompt of the warm-up, in one of the run, and in an answer.
    """
    import openvino
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(folder, "CPU", PERFORMANCE_HINT="LATENCY", **options)
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
        "prefill_s": raw.m_times_to_first_token[0] / 1e6,
        "steps_s": (np.diff(raw.m_new_token_times) / 1e3).tolist(),
        "version": openvino.__version__.split("-")[0],
    }


def main() -> None:
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # stdout belongs to the answer, and these libraries log to it
        asked = json.load(sys.stdin)
        does: dict[str, Callable[..., object]] = {"make": make, "measure": measure}
        json.dump(does[asked.pop("do")](**asked), answer)


if __name__ == "__main__":
    main()
