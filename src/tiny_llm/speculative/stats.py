"""How often drafts are accepted."""


class SpecDecodeStats:
    """How many tokens were drafted and how many were accepted. The counters have vLLM's names."""

    def __init__(self) -> None:
        """Sets num_drafts, num_draft_tokens, num_accepted_tokens to 0, num_accepted_tokens_per_pos to []."""
        raise NotImplementedError("task 3.9.5")

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one draft. An empty draft does not count. A bonus or replacement token is not accepted.

        Entry i of num_accepted_tokens_per_pos counts the drafts whose token i was accepted; the list is as
        long as the longest draft. Raises ValueError if more tokens were accepted than drafted.
        """
        raise NotImplementedError("task 3.9.5")

    @property
    def acceptance_rate(self) -> float | None:
        """The share of draft tokens that were accepted; None without drafts."""
        raise NotImplementedError("task 3.9.5")

    @property
    def mean_acceptance_length(self) -> float | None:
        """Mean tokens per step with a draft, bonus or replacement token included; None without drafts."""
        raise NotImplementedError("task 3.9.5")
