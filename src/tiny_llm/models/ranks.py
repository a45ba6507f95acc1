"""The ranks that compute one model together."""

from typing import Final

import mlx.core as mx


class Ranks:
    """Each rank has a part of every matrix of a layer (Shoeybi et al. 2019, arXiv 1909.08053)."""

    def __init__(self, group: mx.distributed.Group | None = None) -> None:
        """The ranks of `group`; None is a rank alone. Sets is_alone."""
        self.is_alone = group is None or group.size() == 1
        self._group = group

    def total(self, part: mx.array) -> mx.array:
        """Returns the sum of `part` over all ranks, like part."""
        # If there are no tokens (`Wanted(last=0)`) there is nothing to send.
        return part if self.is_alone or not part.size else mx.distributed.all_sum(part, group=self._group)


ALONE: Final = Ranks()
