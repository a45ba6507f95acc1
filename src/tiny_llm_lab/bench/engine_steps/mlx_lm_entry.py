"""mlx-lm's BatchGenerator in the contest, behind the seam of `baselines/mlx_lm.py`."""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from tiny_llm_lab.commands.options import load
from tiny_llm_lab.types import Timing, UserError

from .contest import Contest, Entry, Outcome, outcome
from .load import since
from .setting import Setting, free_memory

if TYPE_CHECKING:
    from tiny_llm_lab.baselines.mlx_lm_model import MlxLmModel

# What BatchGenerator takes when it is not told.
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


def mlx_lm_entries(setting: Setting) -> list[Entry]:
    """The same chunk as ours, and mlx-lm's own default, on one network."""
    # On a CPU `load` picks the width that mlx-lm computes in; elsewhere both take the same.
    on_cpu = mx.default_device() == mx.cpu
    dtype = None if on_cpu else str(setting.checkpoint.dtype).split(".")[-1]
    loaded = load(str(setting.checkpoint.name), "mlx-lm", dtype=dtype)
    model: Any = loaded.model
    about = ""
    if loaded.checkpoint.dtype != setting.checkpoint.dtype:
        names = [str(each.dtype).split(".")[-1] for each in (loaded.checkpoint, setting.checkpoint)]
        about = f"mlx-lm computes in {names[0]}, ours in {names[1]}."
    return [
        Entry(
            f"mlx-lm {step}", partial(_run, loaded.solution, model, loaded.checkpoint.tokenizer, step), text
        )
        for step, text in ((setting.chunk, about), (_OWN_STEP, ""))
    ]


def _run(llm: Any, model: "MlxLmModel", tokenizer: Any, step: int, contest: Contest) -> Outcome:
    counted = type(model)(model.config, CountingNetwork(model.network))
    free_memory()
    held_bytes = mx.get_active_memory()
    completions = llm.batch_generate(
        counted,
        tokenizer,
        contest.prompts,
        max_seq_len=contest.longest,
        batch_size=len(contest.prompts),
        prefill_step=step,
    )
    peak_bytes = mx.get_peak_memory() - held_bytes
    timings: list[Timing] = []
    for done, prompt in zip(completions, contest.prompts, strict=True):
        got = len(done.timing.token_s)
        if done.error or got != prompt.sampling.max_tokens:
            raise UserError(f"mlx-lm, request {done.prompt_idx}: {done.error or f'answered {got} tokens'}")
        timings.append(since(done.timing.arrival_s - prompt.arrival_s, done.timing))
    return outcome(contest, timings, counted.network.num_tokens, peak_bytes)
