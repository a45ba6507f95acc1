"""Forms that cost or break: `python -m tests.helpers.hostile_forms --count 2000 --url http://127.0.0.1:8000`.

It sends them to a server from several threads, while one client reads a stream. It prints the answers by
status, and the gaps of that stream with the forms and without, part by part: others may use the machine too.
"""

import argparse
import collections
import json
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import httpx2

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


def gaps_of_a_stream(url: str, seconds: float) -> list[float]:
    """Seconds between the events of streams, one after the other."""
    gaps, end = list[float](), time.monotonic() + seconds
    while time.monotonic() < end:
        body = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
            last = None
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    now = time.monotonic()
                    gaps += [] if last is None else [now - last]
                    last = now
                if time.monotonic() > end:
                    break
    return gaps


def _said(gaps: list[float]) -> str:
    ordered = sorted(gaps)
    middle, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    return f"median {middle * 1e3:.1f} ms, p99 {p99 * 1e3:.0f} ms, longest {ordered[-1] * 1e3:.0f} ms"


def _send(client: httpx2.Client, form: dict[str, Any]) -> str:
    body = {"prompt": "x", "max_tokens": 8, "structured_outputs": form}
    try:
        answer = client.post("/v1/completions", json=body)
    except (httpx2.HTTPError, ValueError, RecursionError) as error:
        return type(error).__name__
    if answer.status_code >= 500:
        print(answer.text[:200], json.dumps(form)[:300])
    return str(answer.status_code)


def main() -> None:
    """Send them, with pauses in which the client is alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=15, help="of one part, with forms or without")
    args = parser.parse_args()
    draw, statuses = random.Random(args.seed), collections.Counter[str]()
    forms = iter([hostile_form(draw) for _ in range(args.count)])
    longest: dict[str, list[float]] = {"without": [], "with": []}

    def send_some(end: float) -> None:
        while time.monotonic() < end and (form := next(forms, None)) is not None:
            statuses[_send(client, form)] += 1

    client = httpx2.Client(base_url=args.url, timeout=300)
    # A process of its own: it is not to wait for the threads that send.
    with ProcessPoolExecutor(1) as reading, ThreadPoolExecutor(8) as sending:
        while statuses.total() < args.count:
            for name, count in (("without", 0), ("with", 8)):
                gaps = reading.submit(gaps_of_a_stream, args.url, args.seconds)
                list(sending.map(send_some, [time.monotonic() + args.seconds] * count))
                longest[name].append(max(gaps.result()))
                print(f"{name}: {_said(gaps.result())}", flush=True)
    for name, each in longest.items():
        print(f"{name}: the longest of a part in the middle {statistics.median(each) * 1e3:.0f} ms")
    print(dict(statuses))


if __name__ == "__main__":
    main()
