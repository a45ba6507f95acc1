"""What an engine has where another one has a folder that keeps its prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tiny_llm_lab.types.computing.pictures import NO_PICTURES, NoPictures
from tiny_llm_lab.types.errors import UserError
from tiny_llm_lab.types.scheduling.engine import OnStep

if TYPE_CHECKING:
    from tiny_llm_lab.runtime.growing_pool import GrowingPool
    from tiny_llm_lab.runtime.pictures.picture import Picture
    from tiny_llm_ref import Engine


@dataclass
class DiskCounts:
    """What a folder of prefixes, and the tower, have done since the engine was built."""

    num_hit_tokens: int = 0  # of prompts, read from the disk; later hits of the same blocks are in memory
    num_written_blocks: int = 0  # snapshots of a hybrid's states included, like everywhere below
    num_written_bytes: int = 0
    num_read_bytes: int = 0
    num_evicted_blocks: int = 0  # deleted from the folder, because others were used later
    num_dropped_blocks: int = 0  # not written: the disk was too slow, too full or broken
    num_damaged_blocks: int = 0  # files that were not what their name says; they are deleted
    num_pictures: int = 0  # that the model's tower has read
    num_picture_hits: int = 0  # pictures of requests whose rows were there
    tower_s: float = 0.0  # that it worked


class NoPrefixDisk:
    """Of an engine whose prefix cache ends with the process."""

    def __init__(self) -> None:
        """Sets counts, of which all stay 0."""
        self.counts = DiskCounts()

    def watch(self, engine: Engine, pools: Sequence[GrowingPool]) -> None:
        """Begin with an engine; `pools` has its pool if it grows."""

    @property
    def num_held(self) -> int:
        """Requests that wait for the disk; the scheduler's queue has not got them."""
        return 0

    def with_pictures(self, token_ids: Sequence[int], pictures: Sequence[Picture]) -> NoPictures:
        """Returns what an engine's request of `token_ids` has as its pictures.

        Raises UserError for a picture that the model can't read.
        """
        if pictures:
            raise UserError(
                "this model reads text only: leave the pictures out, or choose one that sees them"
            )
        return NO_PICTURES

    def on_step(self, on_step: OnStep | None) -> OnStep | None:
        """An `on_step` for the engine, which calls the given one."""
        return on_step

    def before_step(self) -> None:
        """Called before each step, while the engine has requests."""

    def forget(self, request_id: str) -> None:
        """A request has left the engine."""

    def idle(self) -> float | None:
        """Called when the engine has no requests; returns seconds until the next call, None for never."""
        return None

    def release(self) -> None:
        """The engine ends; its memory is still there."""


NO_PREFIX_DISK: Final = NoPrefixDisk()
