"""The ways to draw from logits, and to score tokens, at the vocabulary of a Qwen."""

import importlib
from functools import partial
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.measure.bench.harness import Variant
from tiny_llm_lab.measure.bench.kernels.comparison import Cost, KernelComparison
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.cpp_ops import CppOps
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.options.sampling_options import shown_sampling
from tiny_llm_lab.types import SamplingParams
from tiny_llm_lab.types.packages import PACKAGES

_VOCAB: Final = 151_936
# temperature, top_k, top_p, and logprobs
_ASKED: Final = ((0.7, 20, 0.8, None), (1, 0, 1, None), (1, 0, 0.95, None), (0, 0, 1, 20))
DRAWS: Final = tuple(SamplingParams(t, k, p, logprobs=num_top) for t, k, p, num_top in _ASKED)


def drawing(rows: int, asked: SamplingParams, vocab: int = _VOCAB) -> KernelComparison:
    """A token of each row of logits [rows, vocab], or logprobs if asked; the limit is reading them once."""
    logits = (3 * mx.random.normal((rows, vocab), key=mx.random.key(0))).astype(mx.bfloat16)
    tokens = mx.argmax(logits, axis=-1)
    mx.eval(logits, tokens)
    ways: dict[str, Any] = {"arrays": None, "MLX, one graph": MlxOps(widens=True)}
    if mx.default_device() == mx.cpu:
        ways["C++"] = CppOps(native.load(PACKAGES["ref"]))
    llm: Any = TaskNames(importlib.import_module(PACKAGES["ref"]))
    if asked.logprobs is None:
        runs = [partial(llm.Sampler(asked, ops), logits, 0) for ops in ways.values()]
    else:
        score = partial(llm.score_tokens, logits, tokens, asked.logprobs)
        runs = [partial(score, ops) for ops in ways.values()]
    what = shown_sampling(asked) if asked.logprobs is None else f"{asked.logprobs} logprobs"
    title = f"{what}: a token of each row of logits [{rows}, {vocab}], bfloat16"
    return KernelComparison(title, Cost(logits.nbytes, logits.size), [*map(Variant, ways, runs)])
