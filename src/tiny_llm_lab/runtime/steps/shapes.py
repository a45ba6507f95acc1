"""What a step of an engine consists of, and which steps a machine is timed with."""

import math
from dataclasses import dataclass

from tiny_llm_lab.types import attention_tokens


@dataclass(frozen=True)
class Part:
    """One request's part of a step: `new` tokens behind `stored`; whether a token is drawn at its end."""

    stored: int
    new: int
    is_drawn: bool = False


Step = tuple[Part, ...]


def decodes(count: int, stored: int) -> Step:
    """`count` requests that take one token each."""
    return (Part(stored, 1, is_drawn=True),) * count


def chunk(stored: int, new: int) -> Step:
    """A chunk of a prompt that does not end it."""
    return (Part(stored, new),)


def work_of(step: Step) -> tuple[int, int, int]:
    """num_tokens, attention_tokens and kv_tokens_read of a step, as in a `StepSample`."""
    attention = sum(attention_tokens(part.stored, part.new) for part in step)
    return sum(part.new for part in step), attention, sum(part.stored + part.new for part in step)


def blocks_of(step: Step, block_size: int) -> int:
    """Blocks that hold all tokens of a step's requests."""
    return sum(-(-(part.stored + part.new) // block_size) for part in step)


@dataclass(frozen=True)
class StepGrid:
    """Steps that differ in size and depth, to fit a step-time model."""

    stored: tuple[int, ...]  # tokens that every request has stored before
    decodes: tuple[int, ...]
    chunks: tuple[int, ...]
    mixed: tuple[tuple[int, int], ...] = ()  # (decodes, tokens of the chunk in the same step)

    def steps(self, max_len: float = math.inf, max_chunk: float = math.inf) -> list[Step]:
        """Decodes, chunks, and both together, at every depth; no request longer than `max_len`."""
        found: list[Step] = []
        for stored in self.stored:
            found += [decodes(count, stored) for count in self.decodes]
            found += [chunk(stored, new) for new in self.chunks]
            found += [decodes(count, stored) + chunk(stored, new) for count, new in self.mixed]
        return [
            step
            for step in found
            if all(part.stored + part.new <= max_len and part.new <= max_chunk for part in step)
        ]
