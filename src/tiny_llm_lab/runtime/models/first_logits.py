"""Checks a model's first logits before it answers anybody."""

import mlx.core as mx

from tiny_llm_lab.runtime.models.config.checkpoint_file import AGAIN
from tiny_llm_lab.types import Checkpoint, Model, UserError


def require_numbers(model: Model, checkpoint: Checkpoint, solution: str) -> None:
    """Raise UserError if a logit after one token is NaN or infinite. Computes one step.

    A model has its largest activations at a text's first token, whichever it is.
    """
    if mx.all(mx.isfinite(model(mx.array([[0]], mx.int32)))).item():
        return
    is_mine = solution == "mine"
    cure = "try --solution ref" if is_mine else f"choose another --dtype, or {AGAIN}"
    dtype = str(checkpoint.dtype).rpartition(".")[2]
    raise UserError(f"{checkpoint.name}: its logits in {dtype} are NaN or infinite: {cure}")
