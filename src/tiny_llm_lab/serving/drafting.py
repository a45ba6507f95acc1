"""What drafts for an engine's model, as its settings ask."""

from collections.abc import Sequence

from tiny_llm_lab.runtime.native.mlx_ops import is_cuda
from tiny_llm_lab.runtime.solution import Serving
from tiny_llm_lab.serving.options.engine_settings import DRAFTED, LOOKED_UP, PREDICTED, EngineSettings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.types import Draft, Model, Proposer
from tiny_llm_lab.types.scheduling.defaults import ignore_sequences
from tiny_llm_lab.types.scheduling.draft import DraftSampler
from tiny_llm_lab.types.scheduling.engine_options import BeforeDraft


class EvenDrafts:
    """The drafts of a proposer, cut to a power of two: a step that verifies one has 2, 3, 5 or 9 rows."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer

    def propose(
        self, token_ids: Sequence[int], request_id: str | None = None, sampler: DraftSampler | None = None
    ) -> Draft:
        """As `Proposer`."""
        draft = self._proposer.propose(token_ids, request_id, sampler)
        length = len(draft.token_ids)
        return draft.cut(1 << length.bit_length() - 1) if length else draft

    def forget(self, request_id: str) -> None:
        """As `Proposer`."""
        self._proposer.forget(request_id)


def drafting(
    llm: Serving, loaded: Loaded, settings: EngineSettings, draft: Model | None
) -> tuple[Model, Proposer | None, BeforeDraft]:
    """The model, what drafts for it, and what has to be called before it drafts.

    Raises UserError for a checkpoint without the draft layer that is asked for.
    """
    model, asked = loaded.model, settings.num_speculative_tokens
    if draft is not None:
        proposer = llm.DraftModelProposer(draft, asked or DRAFTED, model.config.vocab_size)
        return model, _even(proposer), ignore_sequences
    if settings.speculate == "ngram":
        return model, _even(llm.NgramProposer(num_tokens=asked or LOOKED_UP)), ignore_sequences
    if settings.speculate == "off":
        return model, None, ignore_sequences
    whole = llm.MtpModel(model, loaded.checkpoint.weights)
    drafter = llm.MtpProposer(whole, asked or PREDICTED)
    return whole, _even(drafter), drafter.prepare


def _even(proposer: Proposer) -> Proposer:
    return EvenDrafts(proposer) if is_cuda() else proposer
