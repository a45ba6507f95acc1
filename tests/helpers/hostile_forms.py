"""Forms that cost or break: of the fields of structured_outputs, drawn."""

import random
from collections.abc import Callable
from typing import Any

_LARGE = (2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 10**30, -(10**30), 1e-300, 1.7e308)
NUMBERS = (0, 1, -1, *_LARGE, 0.1, 999983)


def hostile_form(draw: random.Random) -> dict[str, Any]:
    """One field of structured_outputs."""
    kind = draw.choice(["json", "json", "json", "regex", "grammar"])
    return {kind: {"json": _schema, "regex": _regex, "grammar": _grammar}[kind](draw, 0)}


def _schema(draw: random.Random, depth: int) -> Any:
    number, inner = draw.choice(NUMBERS), lambda: _schema(draw, depth + 1)
    bounds, steps = ["minimum", "exclusiveMaximum"], [7, 9973, 86400, 999983, 4294967295, 0.001]
    leaves: list[Callable[[], Any]] = [
        lambda: {draw.choice(["const", "default"]): number},
        lambda: {"enum": [draw.choice(NUMBERS) for _ in range(draw.choice([1, 9, 3000]))]},
        lambda: {"type": draw.choice(["integer", "number"]), draw.choice(bounds): number},
        lambda: {"type": "integer", "multipleOf": draw.choice([*steps, number])},
        lambda: {"type": "string", "pattern": _regex(draw, 0)},
        lambda: {"minLength": draw.choice([0, 10**5]), "maxLength": draw.choice([3, 10**6, number])},
        lambda: {"$ref": draw.choice(["#", "#/$defs/a", "#/allOf/0", "http://x/y", "#x", "%"])},
        lambda: draw.choice([True, False, None, [], "x", {"type": "x"}]),
    ]
    trees: list[Callable[[], Any]] = [
        lambda: {"type": "object", "properties": {f"p{i}": inner() for i in range(draw.choice([1, 3, 40]))}},
        lambda: {draw.choice(["allOf", "anyOf", "oneOf"]): [inner() for _ in range(draw.choice([1, 2, 12]))]},
        lambda: {"type": "array", "items": inner(), "minItems": draw.choice([0, 1, 10**4, number])},
        lambda: {"patternProperties": {_regex(draw, 0): inner()}, "additionalProperties": inner()},
        lambda: {"not": inner()} | inner_object(draw, depth),
        lambda: _nested(draw, inner()),
    ]
    made = draw.choice(leaves if depth > 2 or draw.random() < 0.4 else trees)()
    return {"$defs": {"a": _schema(draw, 2)}, **made} if depth == 0 and isinstance(made, dict) else made


def inner_object(draw: random.Random, depth: int) -> dict[str, Any]:
    """A schema that is an object."""
    return made if isinstance(made := _schema(draw, depth + 1), dict) else {}


def _nested(draw: random.Random, inner: Any) -> Any:
    for _ in range(draw.choice([5, 100, 400])):
        inner = {"items": inner} if draw.random() < 0.5 else {"anyOf": [inner]}
    return inner


def _regex(draw: random.Random, depth: int) -> str:
    if depth > 4:
        return draw.choice(
            ["a", ".", "[a-z]", "\\d", "é", "(?i)x", "^", "$", "\\b", "(?=a)", "(", "[^\\x00-\\U0010ffff]"]
        )
    parts = [_regex(draw, depth + 1) for _ in range(draw.choice([1, 1, 2, 3]))]
    count = draw.choice(["", "*", "+", "?", "{2}", "{99}", "{999}", "{1,500}", "{65000}"])
    return f"({draw.choice(['', '|', '.*']).join(parts)}){count}"


def _grammar(draw: random.Random, depth: int) -> str:
    names = [f"r{i}" for i in range(draw.choice([2, 20, 500, 900]))]
    pattern = f"/{_regex(draw, 2)}/".replace("(", "(?:")
    terms = [*names, '"a"', '"b"', '""', pattern, '%json {"type": "integer"}']
    rule = lambda: " ".join(draw.choice(terms) + draw.choice(["", "", "*", "?", "{3,900}"]) for _ in range(3))  # noqa: E731
    return "start: r0\n" + "\n".join(f"{name}: {rule()} | {rule()}" for name in names)
