"""Initialises the first two layers with previous-token heads and induction heads.

Recall by attention is learnt in a jump: nothing can be gained from a head that finds "the token after the
one like me" until another head tells each token what stood before it. On a CPU the wait for that jump is
most of the training, so both are set by hand; training is free to change every weight of them.
"""

from typing import Final

import torch
from torch import Tensor

from .model import Attention, Qwen3

PREV_TOKEN_PAIRS: Final = 5  # the fastest rotations: only they tell one position from the next
FIRST_SLOW_PAIR: Final = 14  # slower rotations than this hardly turn within a short row, so contents compare
WRITE_SCALE: Final = 0.1
COPY_SCALE: Final = 0.2
CONSTANT: Final = 0.02


def init_induction_heads(model: Qwen3, seed: int) -> None:
    """Layer 0 writes the tokens one to three places back; layer 1 matches tokens with the same past."""
    shape = model.model.shape
    generator = torch.Generator().manual_seed(seed)
    hidden, head = shape.hidden_size, shape.head_dim
    constant = torch.ones(hidden)
    slow = head - 2 * FIRST_SLOW_PAIR
    basis = _directions(generator, hidden - 2, hidden)
    # What a token is and what stood before it get subspaces of their own, so that neither blurs the other.
    content, *written = (_into_slow_rows(basis[part * slow : (part + 1) * slow], head) for part in range(4))
    of_the_past = basis[slow : 4 * slow]
    own = torch.cat((basis[:slow], basis[4 * slow :]))
    prev_token, induction = (model.model.layers[index].self_attn for index in (0, 1))
    assert isinstance(prev_token, Attention)
    assert isinstance(induction, Attention)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding -= embedding @ of_the_past.T @ of_the_past
        # Every embedding gets the same extra part: a head that looks back by a distance needs a constant.
        embedding += CONSTANT * constant
        for back, (query_head, key_head) in enumerate(((0, 0), (1, 0), (2, 1)), start=1):
            _set_prev_token(prev_token, query_head, key_head, back, constant, model)
            _rows(prev_token.v_proj.weight, key_head, head).copy_(content)
            _columns(prev_token.o_proj.weight, query_head, head).copy_(WRITE_SCALE * written[back - 1].T)
        # Like me, one place before: then what stands there is what comes next.
        _rows(induction.q_proj.weight, 0, head).copy_(content)
        _rows(induction.k_proj.weight, 0, head).copy_(written[0])
        # The token before me, two places before.
        _rows(induction.q_proj.weight, 2, head).copy_(written[0])
        _rows(induction.k_proj.weight, 1, head).copy_(written[1])
        for query_head, key_head in ((0, 0), (2, 1)):
            mixing = torch.linalg.qr(torch.randn(len(own), head, generator=generator)).Q.T
            copied = mixing @ own
            _rows(induction.v_proj.weight, key_head, head).copy_(copied)
            _columns(induction.o_proj.weight, query_head, head).copy_(COPY_SCALE * copied.T)


def _set_prev_token(
    attention: Attention, query_head: int, key_head: int, back: int, constant: Tensor, model: Qwen3
) -> None:
    """Queries and keys that only hold an angle: their product is largest `back` places before."""
    shape = model.model.shape
    half = shape.head_dim // 2
    frequencies = shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    used = torch.zeros(half)
    used[:PREV_TOKEN_PAIRS] = 1.0
    angles = -back * frequencies
    query = torch.cat((used * angles.cos(), used * angles.sin()))
    key = torch.cat((used, torch.zeros(half)))
    scale = 1.0 / constant.numel() ** 0.5
    _rows(attention.q_proj.weight, query_head, shape.head_dim).copy_(scale * torch.outer(query, constant))
    _rows(attention.k_proj.weight, key_head, shape.head_dim).copy_(scale * torch.outer(key, constant))


def _directions(generator: torch.Generator, rows: int, width: int) -> Tensor:
    """`rows` directions at right angles to each other and to the constant part."""
    start = torch.randn(width, rows, generator=generator)
    start = start - start.mean(dim=0, keepdim=True)
    directions: Tensor = torch.linalg.qr(start).Q.T.contiguous()
    return directions


def _into_slow_rows(rows: Tensor, head: int) -> Tensor:
    """The directions as rows of a head, with nothing where RoPE turns fast."""
    half, slow = head // 2, len(rows) // 2
    out = torch.zeros(head, rows.shape[1])
    out[half - slow : half], out[head - slow :] = rows[:slow], rows[slow:]
    return out


def _rows(weight: Tensor, index: int, head: int) -> Tensor:
    part: Tensor = weight[index * head : (index + 1) * head]
    return part


def _columns(weight: Tensor, index: int, head: int) -> Tensor:
    part: Tensor = weight[:, index * head : (index + 1) * head]
    return part
