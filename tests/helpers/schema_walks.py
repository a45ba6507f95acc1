"""Random answers of a form, for `jsonschema` to check."""

import random

from llguidance import LLMatcher, LLTokenizer

_LONGEST = 400  # bytes of an answer


def walk(grammar: str, seed: int) -> str | None:
    """A random text of the form; None if it does not end. Raises ValueError for what can't be used."""
    library, draw = LLTokenizer("byte"), random.Random(seed)
    matcher = LLMatcher(library, grammar, log_level=0)
    text = bytearray()
    while not matcher.is_error() and len(text) < _LONGEST:
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [token for token in range(library.vocab_size) if mask >> token & 1]
        if matcher.is_error() or not allowed:
            break
        ends, allowed = [each for each in allowed if each > 255], [each for each in allowed if each < 256]
        if ends and (not allowed or draw.random() < 0.5):
            return text.decode()
        closing = [token for token in allowed if token in b'"}]']
        token = draw.choice(closing if closing and draw.random() < 0.3 else allowed)
        matcher.consume_token(token)
        text.append(token)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return None
