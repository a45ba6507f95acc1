"""Gated delta nets on MLX's operators and, on Metal, on a kernel of our own for decodes."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby, pairwise

import mlx.core as mx

from tiny_llm_lab.types import DeltaKernel, DeltaState, DeltaWeights


class MlxDelta:
    """A `DeltaKernel`: one call for neighbouring requests that have as many rows each."""

    def __init__(self, arrays: DeltaKernel, find: Callable[[], DeltaKernel]) -> None:
        """`arrays` compute requests of one length; `find` returns what computes those of one row.

        It is called when a step first has one.
        """
        self._arrays, self._find = arrays, find

    @cached_property
    def _decodes(self) -> DeltaKernel:
        return self._find()

    def __call__(
        self,
        rows: Sequence[mx.array],
        weights: DeltaWeights,
        states: Sequence[DeltaState],
        starts: Sequence[int],
    ) -> tuple[mx.array, list[DeltaState]]:
        """See `DeltaKernel`."""
        outs, after = list[mx.array](), list[DeltaState]()
        for length, group in groupby(end - start for start, end in pairwise(starts)):
            first, count = len(after), len(list(group))
            part = [row[starts[first] : starts[first + count]] for row in rows]
            kernel = self._decodes if length == 1 else self._arrays
            local = range(0, (count + 1) * length, length)
            out, new = kernel(part, weights, states[first : first + count], local)
            outs.append(out)
            # Parts of one array become arrays of their own; a state that is alone stays where it is.
            after += [(mx.contiguous(tail), mx.contiguous(state)) for tail, state in new]
        return mx.concatenate(outs), after
