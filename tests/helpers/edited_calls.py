"""Calls as models write them, and the mistakes that models make in them."""

import json
import random
import re

TAGS = re.compile(r"</?(?:tool_call|function|parameter)[^<>\n]*>")
_VALUES = ("7", "", "a\nb", "  x", "def f():\n    return 1 < 2\n", "<b>x</b>", '{"a": [1]}', "null", 'é\\n"')


def call_text(rng: random.Random, is_json: bool) -> str:
    """One or two calls of `get`; no value has a tag of a call in it."""
    return "\n".join(_call(rng, is_json) for _ in range(rng.choice((1, 1, 2))))


def _call(rng: random.Random, is_json: bool) -> str:
    city, days = rng.choice(_VALUES), rng.randrange(100)
    if is_json:
        call = {"name": "get", "arguments": {"city": city, "days": days, "more": [city, {"x": None}]}}
        return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
    given = f"<parameter=city>\n{city}\n</parameter>\n<parameter=days>\n{days}\n</parameter>\n"
    return f"<tool_call>\n<function=get>\n{given}</function>\n</tool_call>"


def edited(rng: random.Random, text: str) -> str:
    """`text` with a tag or a character that is missing, doubled or in the wrong place, or without its end."""
    if rng.random() < 0.15:
        return text[: rng.randrange(len(text))]
    spans = [found.span() for found in TAGS.finditer(text)]
    if rng.random() < 0.4:
        spans = [(at, at + 1) for at in range(len(text) - 1)]
    (a, b), (c, d) = sorted(rng.sample(spans, 2))
    return rng.choice(
        (text[:a] + text[b:], text[:b] + text[a:], text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:])
    )
