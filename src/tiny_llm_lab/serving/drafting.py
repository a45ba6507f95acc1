"""What drafts for an engine's model, as its settings ask."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Final, cast

from tiny_llm_lab.runtime.growing_pool import GrowingModel, GrowingPool
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.runtime.native.mlx_ops import is_cuda
from tiny_llm_lab.runtime.solution import Serving
from tiny_llm_lab.serving.options.engine_settings import DRAFTED, LOOKED_UP, PREDICTED, EngineSettings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.types import Draft, DraftRequest, Model, PagedModel, Proposer, UserError
from tiny_llm_lab.types.computing.paged import Slice

if TYPE_CHECKING:
    from tiny_llm_ref.engine.sequence import TokenSequence

# Words, digits, blanks and letters that tokenizers split differently.
_SAMPLE: Final = "for i in range(12345):\n\treturn f'Größe {i:>8}'  # naïve, 測試"


class EvenDrafts(Proposer):
    """The drafts of a proposer, cut to a power of two: a step that verifies one has 2, 3, 5 or 9 rows."""

    def __init__(self, proposer: Proposer) -> None:
        self.num_tokens, self.keeps_blocks = proposer.num_tokens, proposer.keeps_blocks
        self.caches, self._proposer = proposer.caches, proposer  # the same list, which gets its cache later

    def create_cache(self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None) -> None:
        """As `Proposer`."""
        self._proposer.create_cache(num_blocks, block_size, kv_bits)

    def follow(self, computed: Sequence[tuple[TokenSequence, Slice]]) -> int:
        """As `Proposer`."""
        return self._proposer.follow(computed)

    def forget(self, request_id: str) -> None:
        """As `Proposer`."""
        self._proposer.forget(request_id)

    def propose(self, asked: Sequence[DraftRequest]) -> list[Draft]:
        """As `Proposer`; nothing is computed for tokens that would be cut."""
        even = [each._replace(num_tokens=_even(each.num_tokens)) for each in asked]
        return [draft.cut(_even(len(draft.token_ids))) for draft in self._proposer.propose(even)]


def require_draft(draft: Loaded, loaded: Loaded) -> None:
    """Raise UserError for a draft model that cannot draft for a model, or costs more than it."""
    name, own, whole = draft.checkpoint.name, draft.model.config, loaded.model.config
    sizes = [sum(prod(shape) for _, shape in parameter_shapes(config)) for config in (own, whole)]
    if sizes[0] > sizes[1]:
        raise UserError(f"{name} is larger than the model that it drafts for: choose a smaller one")
    if own.hybrid and not whole.hybrid:
        raise UserError(f"{name} is a hybrid, which drafts for hybrids only: choose another draft model")
    ids, others = (each.checkpoint.tokenizer.encode(_SAMPLE) for each in (draft, loaded))
    if ids != others:
        raise UserError(f"{name} has another tokenizer than the model: choose one of the same family")


def drafting(
    llm: Serving, loaded: Loaded, settings: EngineSettings, draft: Model | None, pools: list[GrowingPool]
) -> tuple[Model, Proposer | None]:
    """The model, and what drafts for it, which has its blocks in `pools` if it needs any.

    Raises UserError for a checkpoint without the draft layer that is asked for.
    """
    model, asked = loaded.model, settings.num_speculative_tokens
    proposer: Proposer
    if draft is not None:
        growing = GrowingModel(cast(PagedModel, draft), pools)
        proposer = llm.DraftModelProposer(growing, asked or DRAFTED, model.config.vocab_size)
    elif settings.speculate == "ngram":
        proposer = llm.NgramProposer(num_tokens=asked or LOOKED_UP)
    elif settings.speculate == "mtp":
        model = llm.MtpModel(model, loaded.checkpoint.weights)
        own = llm.MtpProposer(model, asked or PREDICTED)
        own.model = GrowingModel(own.model, pools)
        proposer = own
    else:
        return model, None
    return model, EvenDrafts(proposer) if is_cuda() else proposer


def _even(length: int) -> int:
    return 1 << length.bit_length() - 1 if length else 0
