"""Which logits a forward pass returns."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALL: Final = sys.maxsize


@dataclass(frozen=True)
class Wanted:
    """The logits of the `last` tokens of each of these `rows` of the batch, in this order."""

    last: int = ALL  # at most as many as a row has
    rows: Sequence[int] | None = None  # None = all
