"""What the scheduler knows about one request: its tokens, two counters, and its blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiny_llm_lab.types import PRIORITY_CLASSES, PriorityClass, UserError
from tiny_llm_lab.types.computing.paged import NOT_RUNNING, StateUse
from tiny_llm_lab.types.computing.pictures import NO_PICTURES, NoPictures


@dataclass(eq=False)
class TokenSequence:
    """A prompt and the answer so far, and how many of their tokens are in the KV cache.

    One rule drives everything: `num_computed_tokens` catches up with `num_tokens`. A prompt that waits for
    its next chunk, a preempted sequence and a growing answer differ only in these numbers.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    priority: int = 0  # lower is more urgent; used by policy "priority"
    arrival_s: float = 0.0
    priority_class: PriorityClass = "interactive"  # "batch": takes what interactive sequences leave
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0  # the first so many of prompt and answer are in the cache
    num_read_tokens: int = 0  # the first so many are in a draft model's cache (task 3.9.6 on)
    num_readable_tokens: int = 1 << 62  # and more than so many need not be (task 3.9.7 on)
    block_ids: list[int] = field(default_factory=list)  # token i is in block_ids[i // block_size]
    states: StateUse = NOT_RUNNING  # what the next step does with a hybrid model's states of it
    spec_token_ids: list[int] = field(default_factory=list)  # draft of the next tokens, not verified yet
    num_preemptions: int = 0
    skip_reading_prefix_cache: bool = False  # compute every token of its prompt (task 3.7.1 on)
    cache_salt: str = ""  # only sequences of the same salt share blocks
    pictures: NoPictures = NO_PICTURES  # in the prompt
    num_cached_tokens: int = 0  # found in the prefix cache before the first preemption
    order: tuple[float, ...] = ()  # its place in the request queue, smallest first

    @property
    def rank(self) -> int:
        """The index of its class in PRIORITY_CLASSES of tiny_llm_lab.types; 0 is the most urgent."""
        return PRIORITY_CLASSES.index(self.priority_class)

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the prompt and of the answer so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_tokens_with_spec(self) -> int:
        """`num_tokens` plus the number of draft tokens."""
        return self.num_tokens + len(self.spec_token_ids)

    @property
    def token_ids(self) -> list[int]:
        """The tokens of the prompt, then of the answer so far."""
        return [*self.prompt_token_ids, *self.output_token_ids]

    @property
    def is_decoding(self) -> bool:
        """Whether the newest token of the answer is the only known token that is not computed."""
        return bool(self.output_token_ids) and self.num_computed_tokens == self.num_tokens - 1

    def needs_sample(self, num_new_tokens: int) -> bool:
        """Whether a step that computes `num_new_tokens` more tokens ends with a token to sample.

        It does if every known token is then computed. Draft tokens may come on top.
        """
        return self.num_computed_tokens + num_new_tokens >= self.num_tokens

    def tokens_between(self, start: int, end: int) -> list[int]:
        """Returns tokens `start` to `end`, end exclusive, of prompt, answer and draft in this order.

        Takes time for these tokens, not for all tokens. Raises ValueError if there are not that many.
        """
        if not 0 <= start <= end <= self.num_tokens_with_spec:
            raise ValueError(f"tokens {start} to {end} are not among the {self.num_tokens_with_spec} tokens")
        found: list[int] = []
        for part in (self.prompt_token_ids, self.output_token_ids, self.spec_token_ids):
            found += part[max(start, 0) : max(end, 0)]
            start, end = start - len(part), end - len(part)
        return found

    def advance(self, num_new_tokens: int, sampled: Sequence[int] = ()) -> None:
        """Record that `num_new_tokens` more tokens are computed, and that `sampled` was sampled after them.

        `sampled` is empty unless `needs_sample`. If a sample is needed, it has the accepted part of the
        draft, which may be empty, and one more token. They join the answer, the draft is used up, and only
        the newest token is not computed, because rejected tokens do not count as computed. Raises ValueError
        if `sampled` is missing, comes too early, or is not accepted draft tokens plus one token.
        """
        num_drafted = self.num_computed_tokens + num_new_tokens - self.num_tokens
        if num_drafted < 0:
            if sampled:
                raise ValueError(f"request {self.request_id!r} has tokens to compute: nothing to sample yet")
            self.num_computed_tokens += num_new_tokens
            return
        accepted = list(sampled[:-1])
        if not sampled or len(accepted) > num_drafted or accepted != self.spec_token_ids[: len(accepted)]:
            raise ValueError(
                f"request {self.request_id!r} computed {num_drafted} draft tokens: sampled must have the "
                f"accepted ones, from the first on, and one more token, not {list(sampled)}"
            )
        self.output_token_ids += sampled
        self.num_computed_tokens = self.num_tokens - 1
        self.spec_token_ids = []


def clamp_new_tokens(num_new_tokens: int, threshold: int, budget: int) -> int:
    """Returns how many of `num_new_tokens` missing tokens a request gets in a step. All chunking is here.

    At most `threshold` if that is above 0 (0 = off), at most the `budget` that is left, and never below 0.
    """
    if 0 < threshold < num_new_tokens:
        num_new_tokens = threshold
    return max(0, min(num_new_tokens, budget))


def num_prefill_steps(prompt_len: int, threshold: int, budget: int) -> int:
    """Returns how many steps compute the prompt of a request if the engine serves no other request.

    `threshold` is the most tokens of one request in a step (0 = off), `budget` the most tokens of a step:
    (4000, 512, 8192) -> 8, (4097, 512, 512) -> 9. Raises UserError for a prompt or budget below 1, or a
    negative threshold.
    """
    if prompt_len < 1 or budget < 1 or threshold < 0:
        raise UserError(
            f"cannot count steps for a prompt of {prompt_len} tokens, threshold {threshold}, budget "
            f"{budget}: prompt and budget must be 1 or more, the threshold 0 (off) or more"
        )
    chunk = min(threshold or budget, budget)
    return -(-prompt_len // chunk)
