"""A fast encoder for the corpus: it remembers the tokens of every word it has seen."""

import re
from typing import Final

from tokenizers import Tokenizer

from tiny_llm_lab.measure.corpus.words import ALL_SLOT_WORDS, NAMES

from .chat_markup import SPECIAL_TOKENS

# The tokenizer's splitting rule for the ASCII text that the corpus writes; a test compares the two.
_PIECES: Final = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class CorpusEncoder:
    """Encodes corpus text several times faster than the tokenizer, with the same result."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[str, list[int]] = {}
        self.end_of_text, self.turn_start, self.turn_end = tokenizer.encode("".join(SPECIAL_TOKENS)).ids
        self.plain = list(range(len(SPECIAL_TOKENS), tokenizer.get_vocab_size()))
        words = [" " + word for word in (*NAMES, *ALL_SLOT_WORDS)] + list(NAMES)
        self.recalled = sorted({token for word in words for token in self.encode(word)})

    def encode(self, text: str) -> list[int]:
        """The tokens of plain text without markup."""
        tokens: list[int] = []
        for piece in _PIECES.findall(text):
            known = self._pieces.get(piece)
            if known is None:
                known = self._tokenizer.encode(piece, add_special_tokens=False).ids
                self._pieces[piece] = known
            tokens += known
        return tokens

    def length(self, token: int) -> int:
        """How many bytes a token of plain text has."""
        return len(self._tokenizer.id_to_token(token))

    def count(self, text: str) -> int:
        """How many tokens plain text takes."""
        return len(self.encode(text))
