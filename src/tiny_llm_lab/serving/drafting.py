"""What drafts for an engine's model, as its settings ask."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, cast

from tiny_llm_lab.runtime.growing_pool import GrowingModel, GrowingPool
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.runtime.native.mlx_ops import is_cuda
from tiny_llm_lab.runtime.solution import Serving
from tiny_llm_lab.serving.options.engine_settings import DRAFTED, LOOKED_UP, PREDICTED, EngineSettings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.types import Draft, DraftRequest, Model, PagedModel, Proposer, UserError

# Words, digits, blanks and letters that tokenizers split differently.
_SAMPLE: Final = "for i in range(12345):\n\treturn f'Größe {i:>8}'  # naïve, 測試"
_SHARED: Final = "num_tokens keeps_blocks caches is_stored may_lag create_cache follow forget".split()


class EvenDrafts(Proposer):
    """The drafts of a proposer, cut to a power of two: a step that verifies one has 2, 3, 5 or 9 rows."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        for name in _SHARED:
            setattr(self, name, getattr(proposer, name))

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
    elif settings.has_draft_layer:
        model = llm.MtpModel(model, loaded.checkpoint.weights)
        own = llm.MtpProposer(model, asked or PREDICTED)
        own.model = GrowingModel(own.model, pools)
        proposer = own
    else:
        return model, None
    return model, EvenDrafts(proposer) if is_cuda() else proposer


def _even(length: int) -> int:
    return 1 << length.bit_length() - 1 if length else 0
