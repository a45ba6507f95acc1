"""Texts of an exact number of tokens."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tiny_llm_lab.measure.traffic.request import CountTokens
from tiny_llm_lab.runtime.models.registry import RANDOM_PREFIX, SHIPPED, find_folder
from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer, load_tokenizer
from tiny_llm_lab.types import UserError

NO_TOKENIZER: Final = "none"
_NUM_WORDS: Final = 512
_MAX_TOKEN_ID: Final = 2**16  # words of most use have low ids
_MAX_ATTEMPTS: Final = 8
# Without a tokenizer: one token each in most vocabularies.
_COMMON_WORDS: Final = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work number night point home water "
    "room mother area money story fact month lot right study book eye job word business issue side kind head"
).split()


class Texts:
    """Makes texts of random words; equal seeds give equal texts."""

    def __init__(self, tokenizer: CheckpointTokenizer | None, seed: int) -> None:
        """Without a tokenizer a word counts as a token."""
        self._tokenizer = tokenizer
        self._pieces = [f" {word}" for word in _COMMON_WORDS] if tokenizer is None else _pieces_of(tokenizer)
        least = self.count("") + 1
        firsts = [piece.strip() for piece in self._pieces]
        self._firsts = [word for word in firsts if word and self.count(word) == least] or firsts
        self.rng = random.Random(seed)

    def count(self, text: str) -> int:
        """The tokens of `text`."""
        return len(text.split() if self._tokenizer is None else self._tokenizer.encode(text))

    def exact(self, num_tokens: int, start: str = "") -> str:
        """A text of exactly `num_tokens` tokens that begins with `start`; UserError if none was found."""
        start = start or self.rng.choice(self._firsts)
        pieces = self._draw(num_tokens - self.count(start))
        for _ in range(_MAX_ATTEMPTS):
            text = start + "".join(pieces)
            excess = self.count(text) - num_tokens
            if excess == 0:
                return text
            pieces = pieces[: max(0, len(pieces) - excess)] if excess > 0 else pieces + self._draw(-excess)
        raise UserError(f"cannot make a text of exactly {num_tokens} tokens: choose another length")

    def _draw(self, count: int) -> list[str]:
        return self.rng.choices(self._pieces, k=max(0, count))


def tokenizer_for(name: str | None, model: str) -> CheckpointTokenizer | None:
    """The tokenizer called `name`, a model's or "none".

    None is `model`'s, if it is on this machine, because we download nothing unasked.
    """
    if name == NO_TOKENIZER:
        return None
    if name is not None:
        return load_tokenizer(find_folder(name))
    if model in SHIPPED or model.startswith(RANDOM_PREFIX):
        return load_tokenizer(find_folder(model))
    try:
        return load_tokenizer(Path(model)) if Path(model).is_dir() else None
    except (UserError, OSError, ValueError):
        return None  # the name of a server's model need not be a folder here


def token_counter(tokenizer: CheckpointTokenizer | None) -> CountTokens | None:
    """Counts the tokens of an answer's text; None without a tokenizer."""
    return None if tokenizer is None else lambda text: len(tokenizer.encode(text))


def _pieces_of(tokenizer: CheckpointTokenizer) -> Sequence[str]:
    """Words with the blank before them that are one token each behind another word.

    Letters, where there are no such words: a vocabulary of bytes.
    """
    before = len(tokenizer.encode("the"))
    pieces: list[str] = []
    for token_id in range(_MAX_TOKEN_ID):
        word = tokenizer.decode([token_id]).strip()
        if word.isascii() and word.isalpha() and len(tokenizer.encode(f"the {word}")) == before + 1:
            pieces.append(f" {word}")
            if len(pieces) == _NUM_WORDS:
                break
    return pieces or list("abcdefgh")
