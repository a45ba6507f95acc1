"""The pictures of a request: which of its tokens they are, and what a model reads in place of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # a slice has the pictures of its request
    from tiny_llm_lab.types.computing.model import PagedModel
    from tiny_llm_lab.types.computing.paged import Slice


@dataclass(frozen=True)
class PictureConfig:
    """How a model reads pictures: a tower turns patches of P x P pixels into rows [.., E] of its input.

    A row stands for `merge` x `merge` patches, and for one token of the prompt.
    """

    token_id: int  # of a picture's tokens in a prompt, one a row
    sections: tuple[int, int, int]  # rotary pairs that turn with time, height and width, interleaved
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    merge: int
    num_frames: int  # a picture is repeated so often
    num_positions: int  # learned ones, of a square grid
    deep_layers: tuple[int, ...] = ()  # of the tower; their rows are added after the model's first layers


class NoPictures:
    """Of a request of text alone."""

    num_pictures: int = 0

    def positions(self, first: int, count: int) -> Sequence[int]:
        """Returns the rotary positions of tokens `first` to `first` + `count` - 1."""
        return range(first, first + count)

    def keys(self, token_ids: Sequence[int], first: int = 0) -> Sequence[int]:
        """Returns what identifies `token_ids`, which begin with token `first`: in a picture, its contents."""
        return token_ids

    def reader(self, model: PagedModel, slices: Sequence[Slice]) -> PagedModel:
        """Returns `model` for one step over `slices`, which reads pictures where they have any."""
        return model


NO_PICTURES: Final = NoPictures()


def reader(model: PagedModel, slices: Sequence[Slice]) -> PagedModel:
    """Returns what computes a step over `slices`: `model`, or what reads the pictures of its requests."""
    own = next((each.pictures for each in slices if each.pictures.num_pictures), NO_PICTURES)
    return own.reader(model, slices)
