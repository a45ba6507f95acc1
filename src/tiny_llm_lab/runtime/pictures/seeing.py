"""A model that reads rows of pictures in a step, where tokens of text are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, cast

import mlx.core as mx
import numpy as np

from tiny_llm_lab.runtime.native.table_rope import TableRope
from tiny_llm_lab.runtime.pictures.request_pictures import RequestPictures
from tiny_llm_lab.runtime.pictures.rows_store import RowsStore
from tiny_llm_lab.types import Memory, PagedModel, Wanted
from tiny_llm_lab.types.computing.paged import Slice

if TYPE_CHECKING:  # a solution's own classes are typed as the reference's
    from tiny_llm_ref.models.mixers import Attention
    from tiny_llm_ref.models.model import Block, Qwen
    from tiny_llm_ref.models.mtp_model import MtpModel


class SeeingModel:
    """A `Qwen` for one step: all its layers one after the other, to the bit as in one operator."""

    def __init__(self, model: Qwen, store: RowsStore, slices: Sequence[Slice]) -> None:
        """`slices` are those of the step, `store` has the rows of their pictures. Sets config and ops."""
        self.config, self.ops = model.config, model.ops
        self.logits, self._model = model.logits, model
        self._places, self._rows, self._deep = _rows(store, slices)
        self._rope = _rope(model, slices)

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """As `Qwen` with packed rows; `offset` is not read."""
        assert not isinstance(offset, int) and cache is not None
        return self.logits(self.hidden(tokens, offset, cache, wanted=wanted))

    def hidden(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory], *, wanted: Wanted = Wanted()
    ) -> mx.array:
        """As `Qwen.hidden` with packed rows: [T, 1] -> what is `wanted` of [T, 1, E]."""
        model, ops = self._model, self.ops
        x = ops.embedding(tokens, model.embedding)
        x[self._places] = self._rows[:, None].astype(x.dtype)
        last, table = len(model.layers) - 1, range(len(tokens))
        for i, (layer, memory) in enumerate(zip(model.layers, cache, strict=True)):
            x = self._rotating(layer)(x, table, memory, wanted if i == last else Wanted())
            if i < len(self._deep):
                x = x.at[self._places].add(self._deep[i][:, None].astype(x.dtype))
        return ops.rms_norm(x, model.norm, model.config.rms_norm_eps)[1]

    def _rotating(self, layer: Block) -> Block:
        """The layer, which turns row i of the step by row i of the step's table."""
        if not hasattr(layer.mixer, "rope"):
            return layer
        layer = copy(layer)
        layer.mixer = mixer = cast("Attention", copy(layer.mixer))
        mixer.rope = self._rope  # type: ignore[assignment] # any `Rotary` will do
        return layer


class StepReader:
    """Makes the models of steps with pictures, for an engine that computes `whole`."""

    def __init__(self, model: Qwen, whole: PagedModel, store: RowsStore) -> None:
        """`whole` is `model`, or drafts for it with its own layer. Sets store."""
        self.store = store
        self._model, self._whole = model, whole

    def reader(self, slices: Sequence[Slice]) -> PagedModel:
        """See `PictureReader`."""
        seeing = cast(PagedModel, SeeingModel(self._model, self.store, slices))
        if self._whole is self._model:
            return seeing
        drafting = cast("MtpModel", copy(self._whole))  # its hidden states go where the whole looks for them
        drafting.model = cast("Qwen", seeing)
        return drafting


def _rows(store: RowsStore, slices: Sequence[Slice]) -> tuple[mx.array, mx.array, list[mx.array]]:
    """Which rows of a step are of pictures, what they are, and what is added after the first layers."""
    places: list[int] = []
    parts: list[list[mx.array]] = []
    row = 0
    for at in slices:
        own = at.pictures
        spans = own.parts(at.num_computed, at.num_new) if isinstance(own, RequestPictures) else ()
        for span, start, end in spans:
            made = store.rows(span.picture)
            parts.append([part[start:end] for part in (made.embedded, *made.deep)])
            first = row + span.first + start - at.num_computed
            places += range(first, first + end - start)
        row += at.num_new
    embedded, *deep = (mx.concatenate(list(same)) for same in zip(*parts, strict=True))
    return mx.array(places, mx.int32), embedded, deep


def _rope(model: Qwen, slices: Sequence[Slice]) -> TableRope:
    """A table with a row for each row of a step.

    Pairs turn with time, height and width by turns, as many as `sections` says; the rest with time.
    """
    config = model.config.pictures
    assert config is not None
    rope = next(cast("Attention", layer.mixer).rope for layer in model.layers if hasattr(layer.mixer, "rope"))
    axes = np.concatenate([_axes(at) for at in slices])
    axis = np.zeros(rope.periods.size, np.int32)
    for i in (1, 2):
        axis[i : 3 * config.sections[i] : 3] = i
    places = mx.array(axes[:, axis])
    cos, sin = rope.tables(int(axes.max()) + 1)
    return TableRope(*(mx.take_along_axis(part, places, axis=0) for part in (cos, sin)))


def _axes(at: Slice) -> np.ndarray:
    if isinstance(at.pictures, RequestPictures):
        return at.pictures.axes(at.num_computed, at.num_new)
    places = np.array(at.pictures.positions(at.num_computed, at.num_new), np.int32)
    return np.repeat(places[:, None], 3, axis=1)
