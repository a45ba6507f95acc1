"""MNN, in its own python."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers import plain_model, turns


def make(folder: str, shape: dict[str, Any], weights: str, tokenizer: str) -> None:
    """Write a model of `shape` with random weights to `folder`, by llmexport."""
    sys.modules["MNN.tools.utils.log"] = None  # type: ignore[assignment] # it reports what you convert
    found = importlib.util.find_spec("llmexport")
    assert found and found.submodule_search_locations, "llmexport is not installed"
    sys.path.insert(0, found.submodule_search_locations[0])  # it imports its parts from there
    exporter: Any = importlib.import_module("llmexport")
    os.chdir(Path(folder).parent)  # it leaves a log
    plain = plain_model.write(folder, shape, tokenizer)
    given = {"path": plain, "export": "mnn", "quant_bit": weights.removeprefix("int"), "quant_block": 32}
    sys.argv = ["llmexport", "--dst_path", folder, *(f"--{name}={value}" for name, value in given.items())]
    exporter.main()


class Engine:
    """One model for one stream."""

    def __init__(self, path: str, threads: int) -> None:
        import MNN.llm

        self.version = MNN.version()
        self.llm = MNN.llm.create(f"{path}/config.json")
        self.llm.set_config({"thread_num": threads})
        self.llm.load()

    def prefill(self, ids: turns.Array) -> list[float]:
        self.llm.reset()
        return [turns.seconds(self.llm.forward, ids[0].tolist())]

    def step(self, ids: turns.Array) -> float:
        return turns.seconds(self.llm.forward, ids.tolist())


def measure(
    path: str, lengths: list[int], streams: int, threads: int, options: list[str], **drawn: int
) -> dict[str, Any]:
    if streams > 1:
        raise SystemExit("MNN computes one stream: choose --batch 1")
    engine = Engine(path, threads)
    return turns.measure(engine, lengths, streams, **drawn) | {"version": engine.version}
