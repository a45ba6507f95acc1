"""How often drafts are accepted."""


class SpecDecodeStats:
    """How many tokens were drafted and how many were accepted. The counters have vLLM's names."""

    def __init__(self) -> None:
        """Sets num_drafts, num_draft_tokens, num_accepted_tokens to 0, num_accepted_tokens_per_pos to []."""
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_accepted_tokens_per_pos: list[int] = []

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one draft. An empty draft does not count. A bonus or replacement token is not accepted.

        Entry i of num_accepted_tokens_per_pos counts the drafts whose token i was accepted; the list is as
        long as the longest draft. Raises ValueError if more tokens were accepted than drafted.
        """
        if not 0 <= num_accepted_tokens <= num_draft_tokens:
            raise ValueError(f"{num_accepted_tokens} of {num_draft_tokens} draft tokens cannot be accepted")
        if num_draft_tokens == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        per_pos = self.num_accepted_tokens_per_pos
        per_pos += [0] * (num_draft_tokens - len(per_pos))
        for i in range(num_accepted_tokens):
            per_pos[i] += 1

    @property
    def acceptance_rate(self) -> float | None:
        """The share of draft tokens that were accepted; None without drafts."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Mean tokens per step with a draft, bonus or replacement token included; None without drafts."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None
