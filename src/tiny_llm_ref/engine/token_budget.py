"""How the tokens of one step are divided."""

from collections.abc import Sequence

from tiny_llm_lab.types import SchedulerConfig, UserError

from .sequence import TokenSequence, clamp_new_tokens


def fair_shares(needs: Sequence[int], budget: int) -> list[int]:
    """Returns max-min fair shares of `budget` tokens, in the order of `needs`.

    No share exceeds its need, what one need leaves is divided among the rest, and no token stays unused
    while a need is unmet. Shares below their needs differ by at most one token, which the earlier shares
    get: ([4096, 10, 300], 512) -> [251, 10, 251].
    """
    shares = [0] * len(needs)
    left = max(0, budget)
    by_need = sorted(range(len(needs)), key=needs.__getitem__)
    for i, place in enumerate(by_need):
        level, num_extra = divmod(left, len(needs) - i)
        if needs[place] > level:
            # Every remaining need is above an equal part.
            for number, other in enumerate(sorted(by_need[i:])):
                shares[other] = level + (number < num_extra)
            break
        shares[place] = needs[place]
        left -= needs[place]
    return shares


def align_to_grid(start: int, num_new_tokens: int, num_missing_tokens: int, grid: int) -> int:
    """Returns the length of a chunk cut to end at a multiple of `grid` tokens of its sequence (0 = no grid).

    The chunk starts at token `start` and has `num_new_tokens` of the `num_missing_tokens` that follow. A
    chunk that reaches the last missing token keeps its length. If no multiple is inside the chunk, the length
    is 0.
    """
    if grid == 0 or num_new_tokens >= num_missing_tokens:
        return num_new_tokens
    return max(0, (start + num_new_tokens) // grid * grid - start)


def validate_chunk_grid(config: SchedulerConfig) -> None:
    """Raises UserError if a prompt could never get enough tokens to reach the next multiple of chunk_grid.

    The threshold, if it is on, must be at least chunk_grid, and so must the tokens that max_num_seqs - 1
    decodes leave of the budget.
    """
    grid, threshold = config.chunk_grid, config.long_prefill_token_threshold
    room = config.max_num_batched_tokens - config.max_num_seqs + 1
    if 0 < threshold < grid:
        raise UserError(
            f"a chunk of at most {threshold} tokens cannot reach the next multiple of {grid}: set "
            f"chunk_grid to at most long_prefill_token_threshold ({threshold})"
        )
    if grid > room:
        raise UserError(
            f"{config.max_num_seqs - 1} decodes leave {room} of {config.max_num_batched_tokens} tokens, "
            f"fewer than chunk_grid ({grid}): lower max_num_seqs or chunk_grid"
        )


def _reach_grid(shares: list[int], cut: list[tuple[int, int]], prefills: list[int]) -> None:
    """Raise the shares of `cut` prefills, (index, tokens to the grid), to the grid, or lower them to 0."""
    left = sum(shares[i] for i, _ in cut)
    whole = set(prefills) - {i for i, _ in cut}
    for i in sorted(whole, reverse=True):
        if cut and left < cut[0][1]:
            taken = min(shares[i], cut[0][1] - left)
            shares[i] -= taken
            left += taken
    for i, way in cut:
        shares[i] = min(left, max(shares[i], way))
        left -= shares[i]


class TokenBudget:
    """The tokens of one step: how many are left, and how many each sequence got."""

    def __init__(self, config: SchedulerConfig, num_tokens: int) -> None:
        """`num_tokens` are left. Sets left, and assigned = {}, which is by request id and in order."""
        self.config = config
        self.left = num_tokens
        self.assigned: dict[str, int] = {}
        self._shares: dict[str, int] = {}

    def set_shares(self, needs: Sequence[tuple[TokenSequence, int, int]]) -> None:
        """Policy "fair": limit what `num_new_tokens` returns next to fair shares of what is left.

        `needs` has all sequences that may get tokens, in order, each as in `num_new_tokens`. A prefill needs
        at most the threshold. With a chunk_grid, prefills whose share is below their need get, in order,
        enough to reach the next multiple of the grid. The tokens come from the shares of later such prefills
        and, for the first of them, also from prefills whose need is met. Decodes keep their shares.
        """
        threshold, grid = self.config.long_prefill_token_threshold, self.config.chunk_grid
        wanted = [num if s.is_decoding else clamp_new_tokens(num, threshold, num) for s, _, num in needs]
        shares = fair_shares(wanted, self.left)
        if grid:
            prefills = [i for i, (s, _, _) in enumerate(needs) if not s.is_decoding]
            cut = [i for i in prefills if shares[i] < wanted[i]]
            _reach_grid(shares, [(i, grid - needs[i][1] % grid) for i in cut], prefills)
        self._shares = {s.request_id: share for (s, _, _), share in zip(needs, shares, strict=True)}

    def num_new_tokens(self, sequence: TokenSequence, num_computed: int, num_missing: int) -> int:
        """Returns how many of its `num_missing` tokens a sequence gets; `num_computed` are computed.

        A decode gets what it needs, draft included, as far as tokens are left. A prefill gets what
        `clamp_new_tokens` and (from task 3.5.2 on) the grid allow. Without chunked prefill a prompt gets all
        its tokens or none, whatever the threshold and its share; if it began before chunked prefill was
        turned off (from task 3.6.3 on), it continues with what is left.
        """
        left = min(self.left, self._shares.get(sequence.request_id, self.left))
        if sequence.is_decoding:
            return min(num_missing, left)
        if not self.config.enable_chunked_prefill:
            most = self.left if sequence.num_computed_tokens else 0
            return num_missing if num_missing <= self.left else most
        num_new = clamp_new_tokens(num_missing, self.config.long_prefill_token_threshold, left)
        grid = self.config.chunk_grid
        return align_to_grid(num_computed, num_new, num_missing, grid) if grid else num_new

    def assign(self, sequence: TokenSequence, num_new_tokens: int) -> None:
        """Take a sequence's tokens of this step, 1 or more, from the budget."""
        self.assigned[sequence.request_id] = num_new_tokens
        self.left -= num_new_tokens
