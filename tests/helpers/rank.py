"""One rank of a model that several processes share: computes logits and greedy tokens, and writes them down.

Run by `answers`, once a rank.
"""

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tiny_llm_lab import load_checkpoint, load_solution, ranks
from tiny_llm_lab.types import SamplingParams

_ROOT = Path(__file__).parents[2]
NUM_TOKENS = 12
# Starting a process takes some seconds, and its machine may have other things to do.
_TIMEOUT_S = 240


def answers(solution: str, name: str, size: int, folder: Path) -> list[dict[str, Any]]:
    """What `of_model` says on each of `size` ranks of the checkpoint called `name`, in float32."""
    job = {"solution": solution, "name": name, "size": size, "folder": str(folder)}
    # Ranks find the tests and the package under test where this process found them.
    path = [str(_ROOT), *sys.path]
    code = f"import sys; sys.path[:0] = {path!r}; from tests.helpers import rank; rank.main()"
    ended = ranks.launch([sys.executable, "-c", code, json.dumps(job)], size, _TIMEOUT_S)
    assert ended == 0, f"a rank ended with {ended}, after what stands above"
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(size)]


def of_model(llm: Any, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Logits [L, V] of a prompt, and the greedy tokens that follow it when it comes in chunks."""
    prompt = np.random.default_rng(5).integers(3, 256, 40).tolist()
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    logits = model(mx.array([prompt]))[0]
    (done,) = llm.batch_generate(model, tokenizer, [prompt], sampling=sampling, prefill_step=16)
    assert done.error is None, done.error
    return {"logits": np.array(logits.astype(mx.float32)), "tokens": np.array(done.token_ids)}


def main() -> None:
    job = json.loads(sys.argv[1])
    llm: Any = load_solution(job["solution"])
    checkpoint = load_checkpoint(job["name"], dtype="float32")
    group = ranks.group(job["size"])
    found = of_model(llm, llm.build_parallel_model(checkpoint, group), checkpoint.tokenizer)
    np.savez(Path(job["folder"]) / f"{group.rank()}.npz", **found)
