"""Thoughts of an answer: where they are, what closes them at a budget, and a form that begins behind them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat
from tiny_llm_lab.runtime.structured.grammar_processor import GrammarProcessor, MaskProcessor, only
from tiny_llm_lab.types import UNCHANGED, LogitsProcessor, RowChanges, SamplingParams, Tokenizer, UserError
from tiny_llm_lab.types.sampling import THINK, THINK_CLOSE, THINK_END

_BLANKS: Final = ("\n", "\n\n", "\n\n\n", " ", "  ", " \n", "\t", "\r\n")


@dataclass(frozen=True)
class Thoughts:
    """The thoughts of an answer by its tokens: from <think>, or the beginning, to </think>."""

    start: int = -1  # the token <think>
    end: int = -1  # the token </think>; -1: nothing closes thoughts here, and there are none
    close: tuple[int, ...] = ()  # what closes them; it has `end`
    blanks: frozenset[int] = frozenset()  # tokens that may come before <think>
    is_open: bool = False  # the prompt ends with <think>

    @classmethod
    def of(cls, tokenizer: Tokenizer, close: str = THINK_CLOSE) -> Self:
        """Those of a tokenizer's answers, closed by the text `close`; there are none without the tokens."""

        def ids(text: str) -> list[int]:
            return list(tokenizer.encode(RenderedChat(text)))

        start, end, closing = ids(THINK), ids(THINK_END), ids(close)
        if len(start) != 1 or len(end) != 1 or end[0] not in closing:
            return cls()
        blanks = frozenset(token for text in _BLANKS for token in ids(text))
        return cls(start[0], end[0], tuple(closing), blanks)

    def are_open_after(self, prompt: Iterable[int]) -> bool:
        """Whether a prompt ends with <think>; `prompt` may begin anywhere before that."""
        return self._first_word([*prompt][::-1]) > 0

    def begin(self, answer: Sequence[int]) -> int:
        """Where the thoughts begin; -1 if there are none so far."""
        return 0 if self.is_open else self._first_word(answer)

    def num_tokens(self, answer: Sequence[int]) -> int:
        """How many tokens they have, without those that close them."""
        begin = self.begin(answer)
        thoughts = tuple(answer[begin:]) if begin >= 0 else ()
        lead = self.close[: self.close.index(self.end)] if self.close else ()
        thoughts = thoughts[: thoughts.index(self.end)] if self.end in thoughts else thoughts
        return len(thoughts) - (len(lead) if lead and thoughts[-len(lead) :] == lead else 0)

    def _first_word(self, tokens: Sequence[int]) -> int:
        """The place behind <think>, if nothing but blanks is before it; -1 if it is not there."""
        place = next((at for at, token in enumerate(tokens) if token not in self.blanks), None)
        return -1 if place is None or tokens[place] != self.start else place + 1


class ThoughtProcessor(MaskProcessor):
    """Lets thoughts have `budget` tokens, closes those that have more, and lets `form` begin behind them.

    An answer that must have a form doesn't end within its thoughts.
    What is forced depends on places alone, so that a draft that is rejected later changes nothing.
    """

    def __init__(self, thoughts: Thoughts, budget: int | None, form: GrammarProcessor | None = None) -> None:
        """With a form the thoughts must be open. A budget of None is any number."""
        self._thoughts, self._budget, self._form = thoughts, budget, form
        self._tail = thoughts.close[thoughts.close.index(thoughts.end) + 1 :]

    def changes(self, answer: Sequence[int], vocab_size: int) -> RowChanges:
        """See `RowProcessor`."""
        begin = self._thoughts.begin(answer)
        if begin < 0:
            return UNCHANGED
        limit = len(answer) + 1 if self._budget is None else begin + self._budget
        try:
            at = answer.index(self._thoughts.end, begin, limit) + 1
            forced = self._tail if self._form else ()  # they were closed by themselves
        except ValueError:
            at, forced = limit, self._thoughts.close
            if len(answer) < limit:
                return UNCHANGED if self._form is None else self._form.before(vocab_size)
        if len(answer) - at < len(forced):
            return RowChanges(allowed=only((forced[len(answer) - at],), vocab_size))
        if self._form is None:
            return UNCHANGED
        return self._form.changes(answer[at + len(forced) :], vocab_size)


def answer_processors(
    sampling: SamplingParams, prompt: Sequence[int], tokenizer: Tokenizer, form: GrammarProcessor | None
) -> tuple[LogitsProcessor, ...]:
    """The processors of a request for its thoughts and its `form`, which is compiled.

    Raises UserError for a budget if the tokenizer has no tokens for <think> and </think>.
    """
    forms = () if form is None else (form,)
    if sampling.thinking_budget is None and not (forms and sampling.is_thinking):
        return forms
    thoughts = Thoughts.of(tokenizer, sampling.thinking_close)
    if thoughts.end < 0:
        raise UserError("thinking_budget: this model has no tokens <think> and </think>: leave it out")
    is_open = thoughts.are_open_after(prompt) if sampling.is_thinking is None else sampling.is_thinking
    if forms and not is_open:
        return forms
    return (ThoughtProcessor(replace(thoughts, is_open=is_open), sampling.thinking_budget, form),)
