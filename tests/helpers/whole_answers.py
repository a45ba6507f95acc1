"""Requests of every route, and the server's whole answers.

tests/golden/requests.jsonl has a request a line, and what the model says to it. answers.jsonl has the answers
in the same order, without ids and times. `./pdmw run python -m tests.helpers.whole_answers` writes it.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.helpers.scripted_client import scripted_client

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden"
REQUESTS: Final[list[dict[str, Any]]] = [
    json.loads(line) for line in (GOLDEN / "requests.jsonl").read_text("utf-8").splitlines()
]
_ID: Final = re.compile(r"\b(?:[0-9a-f]{32}|[0-9a-f]{24}|[0-9a-f-]{36})\b|(?<=_)[0-9a-f]{24,32}")
_TIME: Final = re.compile(r'("(?:created|created_at|completed_at)": ?)[0-9.]+')
_VERSION: Final = re.compile(r'("version": ?)"[^"]+"')
_HEADERS: Final = ("content-type", "retry-after", "allow", "accept-encoding", "connection", "x-request-id")


def answers(server: Any) -> Iterator[dict[str, Any]]:
    """The status, the headers that a client reads, and the lines of each answer of a scripted server."""
    server.engine.stride = 1000  # a stream's pieces don't depend on who is faster
    for asked in REQUESTS:
        server.engine.script = asked.get("script", "")
        server.engine.finish_reason = asked.get("reason", "stop")
        content = json.dumps(asked["body"]) if "body" in asked else asked.get("raw")
        headers = {"Content-Type": "application/json"} | asked.get("headers", {})
        method = "GET" if content is None else "POST"
        answer = server.site.request(method, asked["path"], content=content, headers=headers)
        lines = [line for line in answer.text.splitlines() if line]
        if asked["path"] == "/metrics":  # numbers are times, and not every system tells of a process
            lines = [line for line in lines if line.startswith("#") and "process" not in line]
        yield {
            "status": answer.status_code,
            "headers": {name: _fixed(answer.headers[name]) for name in _HEADERS if name in answer.headers},
            "lines": [_fixed(line) for line in lines],
        }


def _fixed(text: str) -> str:
    return _VERSION.sub(r'\1""', _TIME.sub(r"\g<1>0", _ID.sub("ID", text)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, scripted_client(Path(folder) / "qwen") as client:
        found = [json.dumps(each, ensure_ascii=False) + "\n" for each in answers(client)]
    (GOLDEN / "answers.jsonl").write_text("".join(found), "utf-8")
