"""A picture that is resized and cut into patches, as it goes from whoever decoded it to the engine."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.computing.pictures import PictureConfig

MOST_PATCHES: Final = 16_384  # of a picture: 4 million pixels, which are 4,096 tokens


@dataclass(frozen=True, eq=False)
class Picture:
    """Patches of `rows` x `columns`, in the order in which the tower takes them: blocks of merge x merge."""

    patches: npt.NDArray[np.uint8]  # [rows * columns, 3, P, P]: red, green, blue
    rows: int
    columns: int

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of its size and contents: equal digests are equal pictures."""
        size = f"{self.rows} {self.columns} {self.patches.shape[-1]} ".encode()
        return hashlib.sha256(size + self.patches.tobytes()).digest()

    def num_tokens(self, config: PictureConfig) -> int:
        """Returns how many tokens of a prompt it has."""
        return self.rows * self.columns // config.merge**2


def expanded(token_ids: Sequence[int], pictures: Sequence[Picture], config: PictureConfig) -> list[int]:
    """Returns a prompt with one token for each row of its pictures, where a template writes one a picture.

    Raises UserError unless there are as many of these as pictures.
    """
    found: list[int] = []
    rest = list(pictures)
    count = sum(token == config.token_id for token in token_ids)
    if count != len(rest):
        raise UserError(f"the prompt has places for {count} pictures, not for {len(rest)}: give one for each")
    for token in token_ids:
        is_place = token == config.token_id
        found += [token] * rest.pop(0).num_tokens(config) if is_place else [token]
    return found
