"""From tokens to text that may be shown, and stop strings."""

from collections.abc import Callable, Sequence

from tiny_llm_lab.types import Detokenizer


class TextStream:
    """Turns tokens into text that may be shown immediately, and looks for stop strings."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        num_without_stop: Callable[[str], int] = lambda text: 0,
    ) -> None:
        """`detokenizer` is new. The text ends just before the first of the `stop` strings to appear.

        Sets text = "", the text released so far, and stopped = False.
        From task 3.7.3 on: a stop string that ends in the first `num_without_stop(text)` characters of the
        text is ignored. It is called with all of the text so far, also what is held back.
        """
        self.text = ""
        self.stopped = False
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._num_without_stop = num_without_stop
        self._held = ""
        self._num_unsearched = 0  # the start of _held, in which no stop string may end

    def push(self, token: int, may_stop: bool = True) -> str:
        """Add a token, and return the text that is now certain to be part of the answer.

        Text that could be the start of a stop string is held back until that is decided, even if the string
        spans many tokens. After a stop string `stopped` is True and nothing follows.
        From task 3.7.3 on: a stop string that ends in a token without `may_stop` is ignored.
        """
        if self.stopped:
            return ""
        self._detokenizer.add_token(token)
        segment = self._detokenizer.last_segment
        if not may_stop:
            self._num_unsearched = len(self._held) + len(segment)
        elif self._stop:
            num = self._num_without_stop(self.text + self._held + segment)
            self._num_unsearched = max(self._num_unsearched, num - len(self.text))
        return self._release(segment, final=False)

    def finish(self) -> str:
        """Returns the rest of the text once no token follows: held-back text and unfinished characters."""
        if self.stopped:
            return ""
        self._detokenizer.finalize()
        return self._release(self._detokenizer.last_segment, final=True)

    def _release(self, segment: str, final: bool) -> str:
        pending = self._held + segment
        behind = self._num_unsearched
        found = (pending.find(stop, max(0, behind - len(stop) + 1)) for stop in self._stop)
        ends = [at for at in found if at >= 0]
        if ends:
            self.stopped, self._held = True, ""
            piece = pending[: min(ends)]
        else:
            keep = 0 if final else self._undecided(pending)
            piece, self._held = pending[: len(pending) - keep], pending[len(pending) - keep :]
            self._num_unsearched = max(0, behind - len(piece))
        self.text += piece
        return piece

    def _undecided(self, pending: str) -> int:
        """Returns the length of the longest end of `pending` that starts a stop string."""
        lengths = (n for stop in self._stop for n in range(1, len(stop)) if pending.endswith(stop[:n]))
        return max(lengths, default=0)
