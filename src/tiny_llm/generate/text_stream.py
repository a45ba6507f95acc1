"""From tokens to text that may be shown, and stop strings."""

from collections.abc import Sequence

from tiny_llm_lab.types import Detokenizer


class TextStream:
    """Turns tokens into text that may be shown immediately, and looks for stop strings."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = ()) -> None:
        """`detokenizer` is new. The text ends just before the first of the `stop` strings to appear.

        Sets text = "", the text released so far, and stopped = False.
        """
        raise NotImplementedError("task 1.6.1")

    def push(self, token: int) -> str:
        """Add a token, and return the text that is now certain to be part of the answer.

        Text that could be the start of a stop string is held back until that is decided, even if the string
        spans many tokens. After a stop string `stopped` is True and nothing follows.
        """
        raise NotImplementedError("task 1.6.1")

    def finish(self) -> str:
        """Returns the rest of the text once no token follows: held-back text and unfinished characters."""
        raise NotImplementedError("task 1.6.1")
