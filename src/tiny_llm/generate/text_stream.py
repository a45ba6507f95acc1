"""From tokens to text that may be shown, and stop strings."""

from collections.abc import Sequence

from tiny_llm_lab.types import Detokenizer


class TextStream:
    """Turns tokens into text that may be shown at once, and watches for stop strings."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = ()) -> None:
        """`detokenizer` is new; `stop` strings end the text just before the first of them to appear.

        Sets text = "", all that was released so far, and stopped = False.
        """
        raise NotImplementedError("task 1.6.1")

    def push(self, token: int) -> str:
        """Add a token; return the text that is now certain to be part of the answer.

        Text that could be the beginning of a stop string is held back until it is decided, also when
        the string spreads over many tokens. After a stop string `stopped` is True and nothing follows.
        """
        raise NotImplementedError("task 1.6.1")

    def finish(self) -> str:
        """The rest of the text, when no token follows: held-back text and unfinished characters."""
        raise NotImplementedError("task 1.6.1")
