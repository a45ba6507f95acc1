"""Requests whose pictures are not read yet wait outside of the queue; the tower works between the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakKeyDictionary

from tiny_llm_lab.runtime.models.weights.layout import EXPERTS, parameter_shapes
from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.runtime.pictures.request_pictures import RequestPictures, Span
from tiny_llm_lab.runtime.pictures.rows_store import RowsStore
from tiny_llm_lab.runtime.pictures.seeing import StepReader
from tiny_llm_lab.runtime.pictures.tower import Tower, TowerOps
from tiny_llm_lab.serving.memory_plan import ROWS_BYTES, ChunkBound
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.serving.prefix_disk.prefix_disk import find_chain, num_usable
from tiny_llm_lab.types import ModelConfig, PagedModel
from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.computing.pictures import NoPictures
from tiny_llm_lab.types.scheduling.defaults import FixedBudget
from tiny_llm_lab.types.scheduling.no_prefix_disk import NoPrefixDisk

if TYPE_CHECKING:
    from tiny_llm_lab.runtime.growing_pool import GrowingPool
    from tiny_llm_ref import BudgetController, Engine, TokenSequence
    from tiny_llm_ref.engine.core import EngineCore
    from tiny_llm_ref.engine.scheduler import Scheduler
    from tiny_llm_ref.models.model import Qwen

_SHARE: Final = 2  # while the tower works, it and the other requests' chunks get this part of a step each


@dataclass(eq=False)
class _Held:
    """A request that waits, and the pictures that it waits for."""

    request: TokenSequence
    missing: list[Span]


class PictureQueue(NoPrefixDisk, FixedBudget):
    """Holds requests of one engine until the tower has read their pictures, on the engine's thread.

    A picture whose keys and values are in the prefix cache is not read. While the tower works a step has half
    of its tokens for chunks, and the tower does as many multiplications as the other half would.
    """

    def __init__(
        self,
        reader: StepReader,
        config: ModelConfig,
        disk: NoPrefixDisk,
        inner: BudgetController | ChunkBound | None,
    ) -> None:
        """`disk` and `inner` are what an engine without pictures would have. Sets counts and is_paced."""
        self.counts, self.is_paced = disk.counts, bool(getattr(inner, "is_paced", inner is not None))
        self._reader, self._store, self._config = reader, reader.store, config
        self._disk, self._inner = disk, inner or FixedBudget()
        self._products = products_per_token(config)
        self._held: list[_Held] = []
        self._has_worked = False  # the tower, before the step that comes next
        self._seen: WeakKeyDictionary[TokenSequence, int] = WeakKeyDictionary()

    def watch(self, engine: Engine, pools: Sequence[GrowingPool] = ()) -> None:
        """Begin with an engine that has this as its `prefix_disk` and budget controller."""
        self._disk.watch(engine, pools)
        self._core: EngineCore = engine.core
        self._scheduler = self._core.scheduler
        self._num_tokens = self._core.config.max_num_batched_tokens

    @property
    def num_held(self) -> int:
        """Requests that wait for the disk or the tower."""
        # After a step that has failed there is another scheduler, and no request.
        return self._disk.num_held + (len(self._held) if self._core.scheduler is self._scheduler else 0)

    def with_pictures(self, token_ids: Sequence[int], pictures: Sequence[Picture]) -> NoPictures:
        """See `NoPrefixDisk`."""
        if not pictures or self._config.pictures is None:
            return super().with_pictures(token_ids, pictures)
        return RequestPictures(token_ids, pictures, self._config.pictures, self._reader)

    def before_step(self) -> None:
        """Hold requests back, work on their pictures, and let those go whose pictures are read."""
        self._disk.before_step()
        if self._core.scheduler is not self._scheduler:
            self._scheduler, self._held = self._core.scheduler, []
        self._hold()
        self._has_worked = False
        room = max(1, self._num_tokens // _SHARE) * self._products
        while self._held and room > 0 and self._has_room():
            self._has_worked = True
            missing = self._held[0].missing
            while missing and room > 0:
                if self._store.has(missing[0].picture):
                    missing.pop(0)
                else:
                    room -= self._store.compute(missing[0].picture, room)
            if not missing:
                self._core.scheduler.queue.readmit(self._held.pop(0).request)

    def token_budget(
        self, now_s: float, scheduler: object, last_token_s: Callable[[str], float]
    ) -> int | None:
        """As `BudgetController`: while the tower works, half of what there would be."""
        queue = cast("Scheduler", scheduler)
        budget = self._inner.token_budget(now_s, queue, last_token_s)
        self._num_tokens = budget or queue.config.max_num_batched_tokens
        if not self._has_worked:
            return budget
        least = len(queue.running) + max(1, queue.config.chunk_grid)
        return min(self._num_tokens, max(self._num_tokens // _SHARE, least))

    def record(self, slices: Sequence[Slice], seconds: float) -> None:
        """As `BudgetController`; rows are kept as long as there is room, or someone needs them."""
        self._inner.record(slices, seconds)
        self._trim()

    def forget(self, request_id: str) -> None:
        """See `NoPrefixDisk`. What was begun for this request alone is dropped."""
        self._held = [each for each in self._held if each.request.request_id != request_id]
        self._store.forget_begun({span.picture.digest for each in self._held for span in each.missing})
        self._disk.forget(request_id)

    def idle(self) -> float | None:
        """See `NoPrefixDisk`."""
        return self._disk.idle()

    def release(self) -> None:
        """See `NoPrefixDisk`."""
        self._disk.release()

    def _trim(self) -> None:
        if self._store.is_over:
            held = [each.request for each in self._held]
            self._store.trim({span.picture.digest for span in self._in_use([*self._queued(), *held])})

    def _has_room(self) -> bool:
        """Whether the tower may go on: it waits for prompts that need the rows that there is room for."""
        self._trim()
        in_use = self._in_use(self._queued()) if self._store.is_over else []
        return not any(self._store.has(span.picture) for span in in_use)

    def _queued(self) -> Sequence[TokenSequence]:
        return [*self._core.scheduler.queue.running, *self._core.scheduler.queue.waiting]

    def _hold(self) -> None:
        """Take the requests that could run next out of the queue if rows of their pictures are missing."""
        queue, at = self._core.scheduler.queue, 0
        num_slots = self._core.config.max_num_seqs - len(queue.running)
        while at < min(num_slots, len(queue.waiting)):
            request, missing = queue.waiting[at], list[Span]()
            own = request.pictures
            if isinstance(own, RequestPictures) and self._seen.get(request) != request.num_preemptions:
                self._seen[request] = request.num_preemptions
                missing = self._missing(request, own)
            if missing:  # then another request may take its place
                queue.remove(request)
                self._held.append(_Held(request, missing))
            else:
                at += 1

    def _missing(self, request: TokenSequence, pictures: RequestPictures) -> list[Span]:
        missing = [span for span in pictures.spans if not self._store.has(span.picture)]
        self.counts.num_picture_hits += len(pictures.spans) - len(missing)
        if missing:
            num_cached = self._num_cached(request)
            missing = [span for span in missing if span.end > num_cached]
        return missing

    def _num_cached(self, request: TokenSequence) -> int:
        """How many tokens of a request it will find in the prefix cache."""
        cache = self._core.prefix_cache
        if cache is None or request.skip_reading_prefix_cache:
            return 0
        keys = cache.keys(request.pictures.keys(request.token_ids), request.cache_salt)
        return num_usable(cache, keys[: len(find_chain(cache, keys))]) * cache.pool.block_size

    def _in_use(self, requests: Sequence[TokenSequence]) -> list[Span]:
        """Their pictures whose tokens are not all computed."""
        pictures = [(each.pictures, each.num_computed_tokens) for each in requests]
        return [
            span
            for own, num_computed in pictures
            if isinstance(own, RequestPictures)
            for span in own.spans
            if span.end > num_computed
        ]


def products_per_token(config: ModelConfig) -> int:
    """Multiplications of one token in all layers' matrices."""
    share = config.num_experts_per_tok / max(1, config.num_experts)
    return round(
        sum(
            prod(shape) * (share if EXPERTS in name else 1)
            for name, shape in parameter_shapes(config)
            if name.startswith("model.layers.") and len(shape) > 1
        )
    )


def picture_queue(
    loaded: Loaded, whole: PagedModel, disk: NoPrefixDisk, inner: BudgetController | ChunkBound | None
) -> PictureQueue | None:
    """What holds the requests of an engine of `whole` back until their pictures are read; None without any.

    `whole` is the loaded model, or drafts for it with its own layer.
    """
    config = loaded.model.config
    if config.pictures is None:
        return None
    ops = cast(TowerOps, loaded.model.ops)
    store = RowsStore(Tower(config.pictures, loaded.checkpoint.weights, ops), ROWS_BYTES, disk.counts)
    return PictureQueue(StepReader(cast("Qwen", loaded.model), whole, store), config, disk, inner)
