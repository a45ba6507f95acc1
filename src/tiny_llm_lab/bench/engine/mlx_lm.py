"""mlx-lm's BatchGenerator among the peers, behind the seam of `baselines/mlx_lm.py`."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.bench.run import Request, Run, prompts_of, timings_of
from tiny_llm_lab.commands.options import Loaded, load

from .config import BenchConfig, free_memory
from .peer_target import PeerTarget

# BatchGenerator's own default.
_OWN_STEP: Final = 2048


class CountingNetwork:
    """A network that counts the tokens it is given, padding included, and is otherwise the one inside."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.num_tokens = 0

    def __call__(self, tokens: mx.array, *args: Any, **kwargs: Any) -> Any:
        self.num_tokens += tokens.size
        return self._network(tokens, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def mlx_lm_targets(config: BenchConfig) -> list[PeerTarget]:
    """The same chunk as ours, and mlx-lm's own default, on one network."""
    # On a CPU `load` picks the width that mlx-lm computes in; elsewhere both take the same.
    on_cpu = mx.default_device() == mx.cpu
    dtype = None if on_cpu else str(config.checkpoint.dtype).split(".")[-1]
    loaded = load(str(config.checkpoint.name), "mlx-lm", dtype=dtype)
    note = ""
    if loaded.checkpoint.dtype != config.checkpoint.dtype:
        names = [str(each.dtype).split(".")[-1] for each in (loaded.checkpoint, config.checkpoint)]
        note = f"mlx-lm computes in {names[0]}, ours in {names[1]}."
    return [
        PeerTarget(f"mlx-lm {step}", partial(_run, loaded, step, config.seed), text)
        for step, text in ((config.chunk, note), (_OWN_STEP, ""))
    ]


def _run(loaded: Loaded, step: int, seed: int, requests: Sequence[Request]) -> tuple[Run, int, float]:
    model: Any = loaded.model
    counted = type(model)(model.config, CountingNetwork(model.network))
    held_bytes = free_memory()
    completions = loaded.solution.batch_generate(
        counted,
        loaded.checkpoint.tokenizer,
        prompts_of(requests, model.config.vocab_size, seed),
        max_seq_len=max(request.num_tokens for request in requests),
        batch_size=len(requests),
        prefill_step=step,
    )
    peak_bytes = mx.get_peak_memory() - held_bytes
    return Run(tuple(requests), timings_of(requests, completions)), counted.network.num_tokens, peak_bytes
