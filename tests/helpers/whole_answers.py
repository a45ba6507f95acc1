"""Requests of every route, and the server's whole answers.

tests/golden/requests.jsonl has a request a line: what is sent; what the model says to it (`script`, `reason`,
`stride` characters a step, the text of all tokens that it `wrote`); the `template` of the model; `why` it is
asked; and texts that its answer or its prompt `has`, whatever is on record. answers.jsonl has the answers in
the same order, without ids and times, with the prompts and the sampling that reached the engine.
`./pdmw run python -m tests.helpers.whole_answers` writes it.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from tests.helpers.golden import GOLDEN, rows_of
from tests.helpers.scripted_client import scripted_client

from tiny_llm_lab.types import SamplingParams

REQUESTS: Final = rows_of("requests")
_ID: Final = re.compile(r"\b(?:[0-9a-f]{32}|[0-9a-f]{24}|[0-9a-f-]{36})\b|(?<=_)[0-9a-f]{24,32}")
_TIME: Final = re.compile(r'("(?:created|created_at|completed_at)": ?)[0-9.]+')
_VERSION: Final = re.compile(r'("version": ?)"[^"]+"')
_HEADERS: Final = ("content-type", "retry-after", "allow", "accept-encoding", "connection", "x-request-id")
_USUAL: Final = asdict(SamplingParams())

Servers = Callable[[str], Any]


@contextmanager
def scripted_servers(folder: Path) -> Iterator[Servers]:
    """The scripted server of each template, which begins when it is first asked for."""
    with ExitStack() as stack:

        def of(template: str) -> Any:
            return stack.enter_context(scripted_client(folder / f"of-{template}", template=template))

        yield cache(of)


def answers(servers: Servers) -> Iterator[dict[str, Any]]:
    """The status, the headers that a client reads, the lines of each answer, and what reached the engine."""
    for asked in REQUESTS:
        server = servers(asked.get("template", ""))
        engine, num_before = server.engine, len(server.engine.asked)
        engine.script, engine.finish_reason = asked.get("script", ""), asked.get("reason", "stop")
        engine.stride = asked.get("stride", 1000)  # a stream's pieces don't depend on who is faster
        engine.token_ids = tuple(server.encode(asked.get("wrote", "")))
        content = json.dumps(asked["body"]) if "body" in asked else asked.get("raw")
        headers = {"Content-Type": "application/json"} | asked.get("headers", {})
        method = "GET" if content is None else "POST"
        answer = server.site.request(
            method, asked["path"], content=content and content.encode("latin-1"), headers=headers
        )
        lines = [line for line in answer.text.splitlines() if line]
        if asked["path"] == "/metrics":  # numbers are times, and not every system tells of a process
            lines = [line for line in lines if line.startswith("#") and "process" not in line]
        fixed = partial(_fixed, names={})
        found = {
            "status": answer.status_code,
            "headers": {name: fixed(answer.headers[name]) for name in _HEADERS if name in answer.headers},
            "lines": [fixed(line) for line in lines],
        }
        if reached := [*_reached(server, num_before, has_seed='"seed"' in (content or ""))]:
            found["reached"] = reached
        yield found


def lacking(asked: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What the answer must have and has not."""
    texts = [*found["lines"], *(each["prompt"] for each in found.get("reached", ()))]
    return [each for each in asked.get("has", ()) if not any(each in text for text in texts)]


def _reached(server: Any, start: int, has_seed: bool) -> Iterator[dict[str, Any]]:
    """The requests of the engine since that number: the prompt of each, and what is not as usual."""
    engine = server.engine
    rows = [*zip(engine.prompts, engine.asked, engine.classes, engine.priorities, strict=True)]
    for prompt, sampling, priority_class, priority in rows[start:]:
        given = {name: value for name, value in asdict(sampling).items() if value != _USUAL[name]}
        if not has_seed:
            given.pop("seed", None)  # it is drawn
        told = {"prompt": server.decode(prompt), "class": priority_class, "priority": priority, **given}
        yield json.loads(json.dumps(told))


def _fixed(text: str, names: dict[str, str]) -> str:
    """The same without times and versions; each id has a number of its own."""
    text = _ID.sub(lambda match: names.setdefault(match[0], f"ID{len(names) + 1}"), text)
    return _VERSION.sub(r'\1""', _TIME.sub(r"\g<1>0", text))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, scripted_servers(Path(folder)) as made:
        written = [*answers(made)]
    for asked, found in zip(REQUESTS, written, strict=True):
        assert not lacking(asked, found), (asked, found)
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in written)
    (GOLDEN / "answers.jsonl").write_text(text, "utf-8")
