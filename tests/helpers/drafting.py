"""Asking a proposer for drafts as an engine does, and what a draft model would say of the whole text."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import Draft, DraftRequest, Proposer, SamplingParams, Wanted
from tiny_llm_lab.types.computing.paged import FIRST_SLOT, Slice


class Texts:
    """Texts that a proposer drafts for, with blocks of their own. Only the newest token is not computed."""

    def __init__(self, llm: Any, proposer: Any, num_blocks: int = 64, block_size: int = 4) -> None:
        self.llm, self.proposer, self.block_size = TaskNames(llm), proposer, block_size
        proposer.create_cache(num_blocks, block_size)
        self.free = list(range(num_blocks))
        self.sequences: dict[str, Any] = {}
        self.num_read = 0

    def start(self, name: str, prompt: Sequence[int], num_blocks: int = 8, chunk: int = 1000) -> None:
        """A prompt that was computed in chunks, and the first token of an answer, its last one."""
        sequence = self.llm.TokenSequence(name, list(prompt[:-1]), states=FIRST_SLOT)
        sequence.block_ids, self.free = self.free[:num_blocks], self.free[num_blocks:]
        self.sequences[name] = sequence
        for first in range(0, len(prompt) - 1, chunk):
            count = min(chunk, len(prompt) - 1 - first)
            sampled = list(prompt[-1:]) if first + count == len(prompt) - 1 else []
            self.computed(sequence, count, sampled)

    def draft(self, *names: str, num_tokens: int = 3, sampler: Any = None) -> list[Draft]:
        """The drafts of these texts, made together."""
        drafter = sampler or self.llm.Drafter(self.llm.Sampler(SamplingParams()))
        asked = [DraftRequest(self.sequences[name], num_tokens, drafter) for name in names]
        drafts: list[Draft] = self.proposer.propose(asked)
        for name, draft in zip(names, drafts, strict=True):
            self.sequences[name].spec_token_ids = list(draft.token_ids)
        return drafts

    def verify(self, name: str, num_accepted: int, then: int) -> list[int]:
        """So many draft tokens are accepted, and the model says `then`; returns the whole text."""
        sequence = self.sequences[name]
        draft = list(sequence.spec_token_ids)
        self.computed(sequence, 1 + len(draft), [*draft[:num_accepted], then])
        return list(sequence.token_ids)

    def computed(self, sequence: Any, num_new: int, sampled: Sequence[int]) -> None:
        """The model has computed so many tokens of a sequence, and sampled these after them."""
        at = Slice(sequence.block_ids, sequence.num_computed_tokens, num_new, FIRST_SLOT)
        sequence.advance(num_new, sampled)
        self.num_read += self.proposer.follow([(sequence, at)])


class Scripted(Proposer):
    """Drafts `draft(number of tokens of the answer)`, and notes its drafts."""

    def __init__(self, num_prompt_tokens: int, draft: Callable[[int], Sequence[int]]) -> None:
        self.num_prompt_tokens, self.draft, self.drafts = num_prompt_tokens, draft, list[tuple[int, ...]]()

    def look_up(self, token_ids: Sequence[int], request_id: str | None = None) -> Draft:
        self.drafts.append(tuple(self.draft(len(token_ids) - self.num_prompt_tokens)))
        return Draft(self.drafts[-1])


def counters(stats: Any) -> tuple[Any, ...]:
    """Of drafts, their tokens, and of those that were accepted: of all, and of each place."""
    accepted = stats.num_accepted_tokens_per_pos
    return stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens, accepted


def expected_draft(
    model: Any, text: Sequence[int], num_tokens: int, drafter: Any, vocab_size: int
) -> list[int]:
    """What a draft model drafts after `text`, each token from a pass over the whole text so far."""
    tokens, own = list(text), model.config.vocab_size
    for _ in range(num_tokens):
        known = [min(token, own - 1) for token in tokens]
        logits = model(mx.array([known]), wanted=Wanted(last=1))[:, -1]
        if vocab_size > own:
            logits = mx.pad(logits, [(0, 0), (0, vocab_size - own)], constant_values=-mx.inf)
        tokens.append(drafter.draft(logits[:, :vocab_size], len(tokens))[0])
    return tokens[len(text) :]
