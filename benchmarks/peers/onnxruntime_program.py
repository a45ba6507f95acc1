"""ONNX Runtime GenAI, in its own python."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import plain_model, turns


def make(folder: str, shape: dict[str, Any], weights: str, tokenizer: str) -> None:
    """Write a model of `shape` with random weights to `folder`, by its model builder.

    Activations are rounded to 8 bits, and a prompt has the logits of its last token only, as in all engines.
    """
    from onnxruntime_genai.models import builder

    sizes = {shape["hidden_size"], shape["intermediate_size"]}
    sizes |= {shape[f"num_{heads}_heads"] * shape["head_dim"] for heads in ("attention", "key_value")}
    if shape["vocab_size"] in sizes:
        raise SystemExit("its builder takes a projection for the output head: choose another vocab")
    plain = plain_model.write(folder, shape, tokenizer)
    Path(folder).mkdir()
    asked = ["block_size=32", "accuracy_level=4", "prune_lm_head=true"]
    args = ("", plain, folder, weights, "cpu", f"{folder}-cache")
    builder.create_model(*args, **builder.parse_extra_options(*args, asked))


class Engine:
    """One model; the prompts of a batch are one forward pass."""

    def __init__(self, path: str, threads: int, longest: int) -> None:
        import onnxruntime_genai

        self.api: Any = onnxruntime_genai
        config, self.longest = self.api.Config(path), longest
        session = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": session}}))
        self.model = self.api.Model(config)

    def prefill(self, ids: turns.Array) -> list[float]:
        params = self.api.GeneratorParams(self.model)
        params.set_search_options(batch_size=len(ids), max_length=self.longest, min_length=self.longest)
        self.generator = self.api.Generator(self.model, params)
        tokens = ids.astype(np.int32)
        return [turns.seconds(self.generator.append_tokens, tokens) + self.step(tokens)]

    def step(self, ids: turns.Array) -> float:
        """Its own tokens: it takes no others for several prompts."""
        return turns.seconds(self.generator.generate_next_token)


def measure(path: str, lengths: list[int], threads: int, options: list[str], **drawn: int) -> dict[str, Any]:
    engine = Engine(path, threads, sum(lengths[1:]) + 1)
    return turns.measure(engine, lengths, **drawn) | {"version": engine.api.__version__}
