"""One request of a measurement: by its lengths alone, or as it is sent to a server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Request:
    """Lengths in tokens; it answers exactly `max_tokens` tokens. `kind` groups requests in reports."""

    kind: str
    prompt_len: int
    max_tokens: int
    arrival_s: float = 0.0  # after the start of the run

    @property
    def num_tokens(self) -> int:
        return self.prompt_len + self.max_tokens


@dataclass(frozen=True)
class LoadRequest:
    """What is sent, and when; `kind` groups requests in reports.

    `prompt` is text or token ids. A chat sends `messages`; without any, the prompt as one user message.
    """

    prompt: str | tuple[int, ...]
    num_prompt_tokens: int  # of the prompt alone; a chat template adds its own
    max_tokens: int
    kind: str = ""
    arrival_s: float = 0.0  # scheduled, after the start of the run
    messages: tuple[Mapping[str, str], ...] = ()
