"""How the tokens of one step are divided."""

from collections.abc import Sequence

from tiny_llm_lab.types import SchedulerConfig

from .sequence import TokenSequence


def fair_shares(needs: Sequence[int], budget: int) -> list[int]:
    """Divide `budget` tokens among `needs`: max-min fair shares, in the order of `needs`.

    No share exceeds its need, what one need leaves is divided among the rest, and no token stays unused
    while a need is unmet. Shares below their needs differ by at most one token, and the earlier ones have
    it: ([4096, 10, 300], 512) -> [251, 10, 251].
    """
    raise NotImplementedError("task 3.5.1")


def align_to_grid(start: int, num_new_tokens: int, num_missing_tokens: int, grid: int) -> int:
    """Shorten a chunk so that it ends at a multiple of `grid` tokens of its sequence (0 = no grid).

    The chunk has `num_new_tokens` from token `start` on, of `num_missing_tokens`; one that reaches the
    last of these stays as it is. Returns the new length: 0 when no multiple lies within the chunk.
    """
    raise NotImplementedError("task 3.5.2")


def validate_chunk_grid(config: SchedulerConfig) -> None:
    """Raise UserError when a prompt could never get enough tokens to reach the next multiple of chunk_grid.

    The threshold, if it is on, and what max_num_seqs - 1 decodes leave of the budget must reach from
    one multiple to the next.
    """
    raise NotImplementedError("task 3.5.2")


class TokenBudget:
    """The tokens of one step: how many are left, and how many each sequence got."""

    def __init__(self, config: SchedulerConfig, num_tokens: int) -> None:
        """`num_tokens` are left. Sets left, and assigned = {} by request id, in order."""
        raise NotImplementedError("task 3.4.5")

    def set_shares(self, needs: Sequence[tuple[TokenSequence, int, int]]) -> None:
        """Policy "fair": fair shares of what is left bound what `num_new_tokens` returns from now on.

        `needs` has all sequences that may get tokens, in order, each as in `num_new_tokens`. A prefill needs
        no more than the threshold. With a chunk_grid, prefills whose share is below their need get, in order,
        enough to reach the next multiple of the grid: from the shares of later such prefills, the first one
        also from prefills whose need is met. Decodes keep their shares.
        """
        raise NotImplementedError("task 3.5.1")

    def num_new_tokens(self, sequence: TokenSequence, num_computed: int, num_missing: int) -> int:
        """How many of its `num_missing` tokens a sequence may have; its first `num_computed` are computed.

        A decode gets what it needs, draft included, as far as tokens are left. A prefill gets what
        `clamp_new_tokens` and (from task 3.5.2 on) the grid leave. Without chunked prefill all or nothing,
        whatever the threshold and its share; one that was begun before it was turned off (from task 3.6.3 on)
        goes on with what is left.
        """
        raise NotImplementedError("task 3.4.5")

    def assign(self, sequence: TokenSequence, num_new_tokens: int) -> None:
        """Take a sequence's tokens of this step, 1 or more, from the budget."""
        raise NotImplementedError("task 3.4.5")
