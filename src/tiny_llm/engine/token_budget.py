"""How the tokens of one step are divided."""

from collections.abc import Sequence

from tiny_llm_lab.types import SchedulerConfig

from .sequence import TokenSequence


def fair_shares(needs: Sequence[int], budget: int) -> list[int]:
    """Returns max-min fair shares of `budget` tokens, in the order of `needs`.

    No share exceeds its need, what one need leaves is divided among the rest, and no token stays unused
    while a need is unmet. Shares below their needs differ by at most one token, which the earlier shares
    get: ([4096, 10, 300], 512) -> [251, 10, 251].
    """
    raise NotImplementedError("task 3.5.1")


def align_to_grid(start: int, num_new_tokens: int, num_missing_tokens: int, grid: int) -> int:
    """Returns the length of a chunk cut to end at a multiple of `grid` tokens of its sequence (0 = no grid).

    The chunk starts at token `start` and has `num_new_tokens` of the `num_missing_tokens` that follow. A
    chunk that reaches the last missing token keeps its length. If no multiple is inside the chunk, the length
    is 0.
    """
    raise NotImplementedError("task 3.5.2")


def validate_chunk_grid(config: SchedulerConfig) -> None:
    """Raises UserError if a prompt could never get enough tokens to reach the next multiple of chunk_grid.

    The threshold, if it is on, must be at least chunk_grid, and so must the tokens that max_num_seqs - 1
    decodes leave of the budget.
    """
    raise NotImplementedError("task 3.5.2")


class TokenBudget:
    """The tokens of one step: how many are left, and how many each sequence got."""

    def __init__(self, config: SchedulerConfig, num_tokens: int) -> None:
        """`num_tokens` are left. Sets left, and assigned = {}, which is by request id and in order."""
        raise NotImplementedError("task 3.4.5")

    def set_shares(self, needs: Sequence[tuple[TokenSequence, int, int]]) -> None:
        """Policy "fair": limit what `num_new_tokens` returns next to fair shares of what is left.

        `needs` has all sequences that may get tokens, in order, each as in `num_new_tokens`. A prefill needs
        at most the threshold. With a chunk_grid, prefills whose share is below their need get, in order,
        enough to reach the next multiple of the grid. The tokens come from the shares of later such prefills
        and, for the first of them, also from prefills whose need is met. Decodes keep their shares.
        """
        raise NotImplementedError("task 3.5.1")

    def num_new_tokens(self, sequence: TokenSequence, num_computed: int, num_missing: int) -> int:
        """Returns how many of its `num_missing` tokens a sequence gets; `num_computed` are computed.

        A decode gets what it needs, draft included, as far as tokens are left. A prefill gets what
        `clamp_new_tokens` and (from task 3.5.2 on) the grid allow. Without chunked prefill a prompt gets all
        its tokens or none, whatever the threshold and its share; if it began before chunked prefill was
        turned off (from task 3.6.3 on), it continues with what is left.
        """
        raise NotImplementedError("task 3.4.5")

    def assign(self, sequence: TokenSequence, num_new_tokens: int) -> None:
        """Take a sequence's tokens of this step, 1 or more, from the budget."""
        raise NotImplementedError("task 3.4.5")
