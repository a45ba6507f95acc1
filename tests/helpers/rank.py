"""Ranks of a model that several processes share: each computes logits and tokens, and writes them down.

`Ranks` starts the processes once and hands them one case after the other, as files in a folder.
"""

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tests.helpers.tolerance import EXACT, F32_MODEL, assert_close

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.cli.batch_main import EngineStats
from tiny_llm_lab.runtime import native, ranks
from tiny_llm_lab.types import EngineOptions, Prompt, SamplingParams, SchedulerConfig

_ROOT = Path(__file__).parents[2]
NUM_TOKENS = 12
_NARROW = SchedulerConfig(max_num_batched_tokens=20, max_num_seqs=4, max_model_len=64)
# All share the beginnings of prompts; the narrow ones cut prompts and preempt as well.
ENGINES: dict[str, tuple[SchedulerConfig, dict[str, Any]]] = {
    "a small pool": (_NARROW, {"num_blocks": 11}),
    "keys and values of 8 bits": (_NARROW, {"num_blocks": 11, "kv_bits": 8}),
    "a step ahead": (SchedulerConfig(), {"num_blocks": 64, "async_scheduling": True}),
    "drafts": (_NARROW, {"num_blocks": 11}),
}
# Starting a process takes some seconds, and its machine may have other things to do.
_TIMEOUT_S = 240
_POLL_S = 0.1  # looked for all the time that other tests take
_END = "end"


class Ranks:
    """`size` ranks of one solution, started at the first case and kept until `close`."""

    def __init__(self, solution: str, size: int, folder: Path) -> None:
        self._solution, self._size, self._folder = solution, size, folder
        self._num_cases = 0
        self._ended: list[int] = []  # the exit code of all ranks, once they have ended
        self._running: threading.Thread | None = None

    def answers(self, name: str, kernels: str = "off") -> list[dict[str, Any]]:
        """What `of_model` says on each rank of the checkpoint called `name`, in float32."""
        if self._running is None:
            self._running = threading.Thread(target=self._launch, daemon=True)
            self._running.start()
        assert not self._ended, f"the ranks ended with {self._ended[0]} in an earlier case"
        case, self._num_cases = self._num_cases, self._num_cases + 1
        _write(self._folder / f"{case}.json", json.dumps({"name": name, "kernels": kernels}).encode())
        paths = [self._folder / f"{case}-{rank}.npz" for rank in range(self._size)]
        while not all(path.exists() for path in paths):
            assert not self._ended, f"a rank ended with {self._ended[0]}, after what stands above"
            time.sleep(_POLL_S)
        return [dict(np.load(path)) for path in paths]

    def close(self) -> None:
        if self._running is not None:
            _write(self._folder / _END, b"")
            self._running.join()

    def _launch(self) -> None:
        job = {"solution": self._solution, "size": self._size, "folder": str(self._folder)}
        # Ranks find the tests and the package under test where this process found them.
        path = [str(_ROOT), *sys.path]
        code = f"import sys; sys.path[:0] = {path!r}; from tests.helpers import rank; rank.main()"
        self._ended.append(ranks.launch([sys.executable, "-c", code, json.dumps(job)], self._size))


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing, for the process that waits for this file."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def check_answers(found: Sequence[dict[str, Any]], want: dict[str, Any]) -> None:
    """What the ranks `found` is what one process says, and the same on all of them."""
    for number, got in enumerate(found):
        for name in want.keys() - {"logits"}:
            assert got[name].tolist() == want[name].tolist(), f"{name} of rank {number}"
        # The same products, added up in another order: not the same bits, but those of one more layer.
        assert_close(got["logits"], want["logits"], F32_MODEL, legend="[L, V]", what=f"rank {number}")
        assert_close(got["logits"], found[0]["logits"], EXACT, what=f"rank {number} beside rank 0")


def of_model(llm: Any, model: Any, tokenizer: Any, name: str) -> dict[str, Any]:
    """Logits [L, V] of a prompt, and the greedy tokens that follow it when it comes in chunks.

    Of every engine the tokens of all its requests [R, n], and what it counted. `name` is the checkpoint's.
    """
    prompt = np.random.default_rng(5).integers(3, 256, 40).tolist()
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    logits = model(mx.array([prompt]))[0]
    (done,) = llm.batch_generate(model, tokenizer, [prompt], sampling=sampling, prefill_step=16)
    assert done.error is None, done.error
    found = {"logits": np.array(logits.astype(mx.float32)), "tokens": np.array(done.token_ids)}
    # Without training the likeliest tokens lie close together, and rounding to 8 bits may decide.
    for engine in ENGINES if name == "default" else ["a small pool"]:
        found |= _of_engine(llm, model, tokenizer, engine)
    return found


def _of_engine(llm: Any, model: Any, tokenizer: Any, name: str) -> dict[str, Any]:
    config, settings = ENGINES[name]
    proposer = llm.NgramProposer() if name == "drafts" else None
    stats = EngineStats()
    options = EngineOptions(block_size=8, proposer=proposer, on_step=stats, **settings)
    engine = llm.Engine(model, tokenizer, config, options)
    done = engine.generate(_prompts())
    assert all(each.error is None for each in done), [each.error for each in done]
    counts = {f"{name}: {what}": np.array(number or 0.0) for what, number in stats.as_json(engine).items()}
    engine.release()
    assert counts[f"{name}: prefix_hit_rate"] > 0, "nothing is shared: this shows too little"
    assert config is not _NARROW or counts[f"{name}: num_preemptions"] > 0, "no request is preempted"
    return counts | {f"{name}: tokens": np.array([each.token_ids for each in done])}


def _prompts() -> list[Prompt]:
    """Six that begin alike; every second one is drawn."""
    draw = np.random.default_rng(6)
    common = draw.integers(3, 256, 18).tolist()
    tails = [draw.integers(3, 256, length).tolist() for length in (1, 30, 9, 22, 4, 14)]
    return [
        Prompt(
            [*common, *tail], SamplingParams(0.9 * (i % 2), max_tokens=NUM_TOKENS, seed=i, ignore_eos=True)
        )
        for i, tail in enumerate(tails)
    ]


def main() -> None:
    """One rank: answers cases in order until a file says `end`, or the test's process is gone."""
    job = json.loads(sys.argv[1])
    folder, llm = Path(job["folder"]), load_solution(job["solution"])
    group = ranks.group(job["size"])
    case, parent = 0, os.getppid()
    while not (folder / _END).exists() and os.getppid() == parent:
        if not (path := folder / f"{case}.json").exists():
            time.sleep(_POLL_S)
            continue
        faulthandler.dump_traceback_later(_TIMEOUT_S, exit=True)
        asked = json.loads(path.read_bytes())
        os.environ[native.VARIABLE] = asked["kernels"]
        _answer(llm, asked["name"], group, folder / f"{case}-{group.rank()}")
        faulthandler.cancel_dump_traceback_later()
        case += 1


def _answer(llm: Any, name: str, group: mx.distributed.Group, path: Path) -> None:
    checkpoint = load_checkpoint(name, dtype="float32")
    build = llm.build_parallel_model
    found = of_model(llm, build(checkpoint, group), checkpoint.tokenizer, name)
    np.savez(f"{path}.unfinished.npz", **found)
    Path(f"{path}.unfinished.npz").replace(f"{path}.npz")
