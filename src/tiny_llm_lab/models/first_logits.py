"""What a model says of its first token, looked at before it answers anybody."""

import mlx.core as mx

from tiny_llm_lab.models.checkpoint_file import AGAIN
from tiny_llm_lab.types import Checkpoint, Model, UserError


def require_numbers(model: Model, checkpoint: Checkpoint, solution: str) -> None:
    """Raise UserError when a logit behind one token is NaN or infinite. Computes one step.

    The largest activations of a model are those of a text's first token, whichever it is.
    """
    if mx.all(mx.isfinite(model(mx.array([[0]], mx.int32)))).item():
        return
    if solution == "mine":
        raise UserError(
            f"{checkpoint.name}: your model's logits are not numbers: run it with --solution ref, "
            "and if that answers, the mistake is in your code"
        )
    other = "choose --dtype bfloat16 or float32, or " if checkpoint.dtype == mx.float16 else ""
    raise UserError(
        f"{checkpoint.name}: its logits are not numbers: sums overflow in "
        f"{str(checkpoint.dtype).rpartition('.')[2]}, or its weights are damaged: {other}{AGAIN}"
    )
