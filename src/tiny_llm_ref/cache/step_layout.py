"""Which rows of a step belong to which request, and where their keys and values are stored."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types.computing.paged import Slice, StateUse


@dataclass(frozen=True, eq=False)
class StepLayout:
    """Which of R requests each of a step's T rows belongs to, and where keys and values are stored.

    A row is one token. The rows of a request are adjacent: one in a decode, several in a chunk.
    """

    positions: list[int]  # [T] the rotary position: without pictures, the tokens of its request before it
    query_starts: list[int]  # [R + 1]: the rows of request r are query_starts[r] to query_starts[r + 1] - 1
    lengths: list[int]  # [R] the number of stored tokens, including this step's
    slots: mx.array  # [T] int32: where a row's keys and values go, block * block_size + place in the block
    block_tables: mx.array  # [R, longest] int32: the blocks of each request, then zeros
    states: list[StateUse]  # [R]: what the step does with a hybrid model's states of the request

    @classmethod
    def of(cls, block_size: int, slices: Sequence[Slice]) -> "StepLayout":
        """Returns the layout of a slice of each request, in the order of the rows.

        Token t of a request is stored in its block t // block_size, at place t % block_size. Blocks after
        the last token's block are allowed and left out of the tables. Raises ValueError if a request's blocks
        have no room for all its tokens, or if it has no new tokens or fewer than 0 computed tokens.
        """
        positions: list[int] = []
        slots: list[int] = []
        starts, lengths, tables = [0], [], []
        for block_ids, computed, new, _, pictures in slices:
            length = computed + new
            used = -(-length // block_size)
            if computed < 0 or new < 1 or used > len(block_ids):
                raise ValueError(
                    f"{len(block_ids)} blocks of {block_size} cannot take {new} tokens after {computed}"
                )
            positions += pictures.positions(computed, new)
            slots += [
                block_ids[t // block_size] * block_size + t % block_size for t in range(computed, length)
            ]
            starts.append(len(positions))
            lengths.append(length)
            tables.append(list(block_ids[:used]))
        return cls(
            positions,
            starts,
            lengths,
            mx.array(slots, mx.int32),
            _padded(tables),
            [each.states for each in slices],
        )


def _padded(tables: list[list[int]]) -> mx.array:
    longest = max(map(len, tables), default=0)
    rows = array("i")  # with one long request, lists take 60 ms
    for table in tables:
        rows.extend(table)
        rows.frombytes(bytes(rows.itemsize * (longest - len(table))))
    return mx.array(cast(list[int], rows), mx.int32).reshape(len(tables), longest)
