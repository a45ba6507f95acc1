"""What a tower has made of pictures, kept by their contents as long as there is room."""

import time
from collections import OrderedDict
from collections.abc import Collection

from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.runtime.pictures.tower import Rows, Tower, Work
from tiny_llm_lab.types.scheduling.no_prefix_disk import DiskCounts


class RowsStore:
    """Rows of pictures, at most `num_bytes` besides those in use; `tower` computes what is missing."""

    def __init__(self, tower: Tower, num_bytes: int, counts: DiskCounts) -> None:
        """Sets tower and counts, in which it counts pictures."""
        self.tower, self.counts = tower, counts
        self._num_bytes = num_bytes
        self._found: OrderedDict[bytes, Rows] = OrderedDict()  # the one used last is the last
        self._begun: dict[bytes, Work] = {}

    def has(self, picture: Picture) -> bool:
        """Whether the rows of a picture are there."""
        return picture.digest in self._found

    def rows(self, picture: Picture) -> Rows:
        """Returns the rows of a picture; computes what is missing now."""
        while not self.has(picture):
            self.compute(picture, 1 << 60)
        self._found.move_to_end(picture.digest)
        return self._found[picture.digest]

    def compute(self, picture: Picture, num_products: int) -> int:
        """Compute pieces of a picture worth about so many multiplications; returns how many they were."""
        work, spent = self._begun.pop(picture.digest, None) or self.tower.work(picture), 0
        start_s = time.perf_counter()
        try:
            while spent < num_products:
                spent += next(work)
            self._begun[picture.digest] = work  # not if it has raised: a generator is over then
        except StopIteration as end:
            self._found[picture.digest] = end.value
            self.counts.num_pictures += 1
        self.counts.tower_s += time.perf_counter() - start_s
        return spent

    @property
    def is_over(self) -> bool:
        """Whether there are more rows than are to be kept."""
        return sum(rows.nbytes for rows in self._found.values()) > self._num_bytes

    def trim(self, in_use: Collection[bytes]) -> None:
        """Forget what was used least recently and is not `in_use`, by digest, where there is no room."""
        for digest in list(self._found):
            if not self.is_over:
                return
            if digest not in in_use:
                del self._found[digest]

    def forget_begun(self, in_use: Collection[bytes]) -> None:
        """Drop what was begun for pictures that nobody waits for any more."""
        for digest in self._begun.keys() - set(in_use):
            del self._begun[digest]
