"""The gated delta rule (arXiv 2412.06464) over whole rows, in chunks so that it can be trained."""

import math
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

CHUNK: Final = 64


def chunkwise(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """q, k [B, H, L, Dk], v [B, H, L, Dv], log_decay and beta [B, H, L], all float32 -> [B, H, L, Dv].

    Within a chunk it is a triangular system, and between chunks a recurrence.
    """
    length = q.shape[2]
    q, k, v, log_decay, beta = (_in_chunks(each) for each in (q, k, v, log_decay, beta))
    faded = log_decay.cumsum(-1)  # since the chunk began
    between = (faded[..., :, None] - faded[..., None, :]).masked_fill(_above(0, q), -math.inf).exp()
    scaled = beta[..., None] * k
    system = (scaled @ k.mT * between).masked_fill(_above(-1, q), 0.0)
    both = torch.cat((beta[..., None] * v, faded.exp()[..., None] * scaled), dim=-1)
    solved = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
    new, of_state = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    scores, reads = q @ k.mT * between, q * faded.exp()[..., None]
    writes = k * (faded[..., -1:] - faded).exp()[..., None]
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for i in range(q.shape[2]):
        corrected = new[:, :, i] - of_state[:, :, i] @ state
        outputs.append(reads[:, :, i] @ state + scores[:, :, i] @ corrected)
        state = faded[:, :, i, -1, None, None].exp() * state + writes[:, :, i].mT @ corrected
    return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length]


def _in_chunks(x: Tensor) -> Tensor:
    """[B, H, L, ...] -> [B, H, chunks, CHUNK, ...]; added tokens write nothing and fade nothing."""
    missing = -x.shape[2] % CHUNK
    pad = (0, 0) * (x.ndim - 3) + (0, missing)
    return functional.pad(x, pad).unflatten(2, (-1, CHUNK))


def _above(diagonal: int, like: Tensor) -> Tensor:
    return torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=like.device).triu(diagonal + 1)
