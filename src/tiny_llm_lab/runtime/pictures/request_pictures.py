"""The pictures in the prompt of one request: their tokens, positions, contents and rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tiny_llm_lab.runtime.pictures.picture import MOST_PATCHES, Picture
from tiny_llm_lab.types import PagedModel, UserError
from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.computing.pictures import NoPictures, PictureConfig


class PictureReader(Protocol):
    """What makes a model read pictures."""

    def reader(self, slices: Sequence[Slice]) -> PagedModel:
        """Returns a model for one step over `slices`, of which some have rows of pictures."""


@dataclass(frozen=True)
class Span:
    """The tokens of a picture in a prompt."""

    first: int
    picture: Picture
    num_tokens: int

    @property
    def end(self) -> int:
        """The token after it."""
        return self.first + self.num_tokens


class RequestPictures(NoPictures):
    """Which tokens of a prompt are pictures. See `NoPictures` for what a solution calls."""

    def __init__(
        self,
        token_ids: Sequence[int],
        pictures: Sequence[Picture],
        config: PictureConfig,
        model: PictureReader,
    ) -> None:
        """`token_ids` are as `expanded` returns them. Sets spans and num_pictures.

        Raises UserError unless they have the tokens of these pictures.
        """
        self.spans = list(_spans(token_ids, pictures, config))
        self.num_pictures, self._model = len(pictures), model
        self._end = self.spans[-1].end  # from here on positions rise by one
        self._axes, self._next = _axes(self.spans, config.merge)
        self._keys = {span.first: _keys(span) for span in self.spans}

    def positions(self, first: int, count: int) -> Sequence[int]:
        """See `NoPictures`; inside a picture, of its upper left corner."""
        return [int(place) for place in self.axes(first, count)[:, 0]]

    def axes(self, first: int, count: int) -> npt.NDArray[np.int32]:
        """Returns the positions of tokens in time, height and width, [count, 3]."""
        places = np.arange(max(first, self._end), max(first + count, self._end), dtype=np.int32)
        behind = places - self._end + self._next
        return np.concatenate([self._axes[first : first + count], np.repeat(behind[:, None], 3, axis=1)])

    def keys(self, token_ids: Sequence[int], first: int = 0) -> Sequence[int]:
        """See `NoPictures`: tokens of pictures have numbers below 0, 63 bits of the picture's digest each."""
        found = list(token_ids)
        for span, start, end in self.parts(first, len(found)):
            own = self._keys[span.first][start:end]
            place = span.first + start - first
            found[place : place + len(own)] = own
        return found

    def parts(self, first: int, count: int) -> Iterator[tuple[Span, int, int]]:
        """Yield each picture that has some of `count` tokens from `first` on, and which of its tokens."""
        for span in self.spans:
            start, end = max(first, span.first), min(first + count, span.end)
            if start < end:
                yield span, start - span.first, end - span.first

    def reader(self, model: PagedModel, slices: Sequence[Slice]) -> PagedModel:
        """See `NoPictures`."""
        has_rows = any(
            isinstance(at.pictures, RequestPictures) and any(at.pictures.parts(at.num_computed, at.num_new))
            for at in slices
        )
        return self._model.reader(slices) if has_rows else model


def _spans(token_ids: Sequence[int], pictures: Sequence[Picture], config: PictureConfig) -> Iterator[Span]:
    first, places = 0, [i for i, token in enumerate(token_ids) if token == config.token_id]
    counts = [picture.num_tokens(config) for picture in pictures]
    if sum(counts) != len(places):
        raise UserError(f"the prompt has {len(places)} tokens of pictures, which have {sum(counts)}")
    for picture, count in zip(pictures, counts, strict=True):
        if len(picture.patches) > MOST_PATCHES:
            raise UserError(f"a picture has {len(picture.patches)} patches, and may have {MOST_PATCHES}")
        mine = places[first : first + count]
        if not mine or mine[-1] - mine[0] != count - 1:
            raise UserError("the tokens of a picture must be one behind the other")
        yield Span(mine[0], picture, count)
        first += count


def _axes(spans: Sequence[Span], merge: int) -> tuple[npt.NDArray[np.int32], int]:
    """The positions of all tokens up to the end of the last picture, [n, 3], and the next one.

    Text has one position for all three. A picture's rows and columns count from where it begins, and the
    text behind it goes on after the larger of them (Qwen2-VL, arXiv 2409.12191, section 2.1).
    """
    parts, position, token = [], 0, 0
    for span in spans:
        text = np.arange(position, position + span.first - token, dtype=np.int32)
        position, token = position + len(text), span.end
        rows, columns = span.picture.rows // merge, span.picture.columns // merge
        row, column = np.indices((rows, columns), np.int32).reshape(2, -1)
        parts += [np.repeat(text[:, None], 3, axis=1), position + np.stack([row * 0, row, column], axis=1)]
        position += max(rows, columns)
    return np.concatenate(parts).astype(np.int32), position


def _keys(span: Span) -> list[int]:
    """A number below 0 for each token of a picture, that other pictures and other tokens don't have."""
    words = hashlib.shake_256(span.picture.digest).digest(8 * span.num_tokens)
    return [int(word) for word in np.frombuffer(words, np.int64) | np.int64(-(2**63))]
