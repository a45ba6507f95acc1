"""What known clients send, in their shapes and our words, finds all that was computed before."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.checkpoints import edit_json
from tests.lab.as_reported.conftest import TEMPLATES, client_of

BLOCK = 16  # tokens, which are bytes here
TURN = 120  # what a template writes around a new question
HYBRID = "qwen3.5-shrunk,positions=8192"
SHAPES = dict.fromkeys(("qwen3", "qwen3_coder", "llama3_1"), "qwen3-shrunk,positions=8192")
SHAPES |= dict.fromkeys(("qwen3_5", "qwen3_6", "qwen3_8"), HYBRID)
TAIL = dict.fromkeys(SHAPES, 6) | {"qwen3_8": 40}  # of a prompt, which history has not: how to think

Body = dict[str, Any]
Turns = list[Body]


def turn(role: str, content: Any) -> Body:
    return {"role": role, "content": content}


def words(name: str, count: int) -> str:
    """A text of `count` words that only `name` says."""
    return " ".join(f"{name}{number}" for number in range(count))


def parts(*texts: str, kind: str = "text") -> Turns:
    return [{"type": kind, "text": each} for each in texts]


def functions(*names: str) -> Turns:
    text = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return [{"name": name, "description": words(name, 12), "parameters": text} for name in names]


def tools(*names: str) -> Turns:
    return [{"type": "function", "function": each} for each in functions(*names)]


CALL = {"name": "read", "arguments": json.dumps({"path": "a.txt"})}
FILE = words("line", 30)
CALLED: Turns = [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": CALL}]},
    {"role": "tool", "tool_call_id": "c", "content": FILE},
]
ANSWER = turn("assistant", "It has lines.")


@dataclass(frozen=True)
class Client:
    """`body(question, later)` makes the body of a conversation, with `later` turns after its question."""

    path: str
    body: Callable[[str, Turns], Body]
    later: tuple[Turns, Turns]  # a tool's result; an answer and another question
    again: int = 0  # characters that come once more behind what is new


def claude_code(question: str, later: Turns) -> Body:
    number = sum(map(ord, question)) % 4096
    billing = f"x-anthropic-billing-header: cc_version=2.1.332.{number:03x}; cc_entrypoint=cli;"
    system = parts(billing, "You are a tool for code.", words("claude", 60))
    asked = turn("user", parts("<system-reminder>Be short.</system-reminder>", question))
    given = [{**each, "input_schema": each.pop("parameters")} for each in functions("read", "edit", "bash")]
    fields = {
        "system": system,
        "tools": given,
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": question},
    }
    return {"max_tokens": 1, **fields, "messages": [asked, turn("system", words("folder", 15)), *later]}


def codex(question: str, later: Turns) -> Body:
    told = [turn("developer", parts(words(name, 20), kind="input_text")) for name in ("rules", "skills")]
    asked = [turn("user", parts(each, kind="input_text")) for each in (words("folder", 10), question)]
    given = [{"type": "function", **each} for each in functions("read", "plan")] + [{"type": "web_search"}]
    fields = {"store": False, "reasoning": {"effort": "medium"}, "prompt_cache_key": question, "tools": given}
    return {
        "max_output_tokens": 1,
        "instructions": words("codex", 50),
        **fields,
        "input": [*told, *asked, *later],
    }


def chat(*before: Body, **fields: Any) -> Callable[[str, Turns], Body]:
    return lambda question, later: {
        "max_tokens": 1,
        "messages": [*before, turn("user", question), *later],
        **fields,
    }


def cline(question: str, later: Turns) -> Body:
    asked = turn("user", parts(f"<task>{question}</task>", "<environment_details>now</environment_details>"))
    return {
        "max_tokens": 1,
        "tools": tools("read", "edit"),
        "messages": [turn("system", words("cline", 70)), asked, *later],
    }


def aider(question: str, later: Turns) -> Body:
    """Files and reminders come after what has been said, and again with each question."""
    shown = [turn("user", words("example", 15)), turn("assistant", "Ok.")]
    files = [turn("user", FILE), turn("assistant", "Ok.")]
    asked = [turn("user", question), turn("system", words("reminder", 5))]
    return {"max_tokens": 1, "messages": [turn("system", words("aider", 60)), *shown, *later, *files, *asked]}


USE = turn("assistant", [{"type": "tool_use", "id": "c", "name": "read", "input": {"path": "a.txt"}}])
RESULT = turn("user", [{"type": "tool_result", "tool_use_id": "c", "content": parts(FILE)}])
ITEMS: Turns = [
    {"type": "function_call", "call_id": "c", **CALL},
    {"type": "function_call_output", "call_id": "c", "output": FILE},
]
MORE = [ANSWER, turn("user", "And then?")]
SAID = [{"type": "message", **turn("assistant", parts("It has lines.", kind="output_text"))}, MORE[1]]
QWEN = (turn("system", words("qwen", 70)), turn("user", words("setup", 20)), turn("assistant", "Got it."))
CHAT = "/v1/chat/completions"
CLIENTS = {
    "Claude Code": Client("/v1/messages", claude_code, ([USE, RESULT], MORE)),
    "Codex": Client("/v1/responses", codex, (ITEMS, SAID)),
    "qwen-code": Client(CHAT, chat(*QWEN, tools=tools("read", "memory")), (CALLED, MORE)),
    "opencode": Client(
        CHAT, chat(turn("system", words("open", 50)), tools=tools("read", "todo")), (CALLED, MORE)
    ),
    "pi": Client(CHAT, chat(turn("system", words("pi", 20)), tools=tools("read", "bash")), (CALLED, MORE)),
    "Continue": Client(
        CHAT, chat(turn("system", words("continue", 30)), tools=tools("read")), (CALLED, MORE)
    ),
    "cline": Client(CHAT, cline, (CALLED, MORE)),
    "aider": Client(CHAT, aider, ([turn("user", "Hi"), ANSWER], MORE[::-1]), again=len(FILE) + TURN),
}


@dataclass(frozen=True)
class Server:
    """The one engine of a template."""

    template: str
    http: httpx2.Client

    def ask(self, path: str, body: Body) -> tuple[int, int]:
        """The tokens of a prompt, and how many of them were computed."""
        answer = self.http.post(path, json={"model": "gpt-9", **body})
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        if path == "/v1/messages":
            computed = usage["input_tokens"] + usage["cache_creation_input_tokens"]
            return computed + usage["cache_read_input_tokens"], computed
        kind = "input" if path == "/v1/responses" else "prompt"
        whole = usage[f"{kind}_tokens"]
        return whole, whole - usage[f"{kind}_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module", params=SHAPES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernels_on: None
) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp(request.param) / "model"
    qwen_like_folder(folder, SHAPES[request.param])
    template = (TEMPLATES / f"{request.param}.jinja").read_text()
    edit_json(folder / "tokenizer_config.json", chat_template=template)
    with client_of(str(folder), ("mine", "*"), state_cache_interval=BLOCK) as http:
        assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["mine"]
        yield Server(request.param, http)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_conversation_computes_what_it_gained(name: str, server: Server) -> None:
    client, question = CLIENTS[name], "What is in a.txt?"
    (first, second), shape = client.later, SHAPES[server.template]
    steps = [client.body(question, later) for later in ([], first, [*first, *second])]
    lengths, free = list[int](), TAIL[server.template] + BLOCK - 1 + client.again
    for body in steps:
        whole, computed = server.ask(client.path, body)
        # Templates of models that think write an exchange again once it is over.
        known = lengths[0 if shape == HYBRID else -1] if lengths else 0
        assert computed <= whole - known + free, body
        lengths.append(whole)
    assert server.ask(client.path, steps[-1])[1] <= BLOCK
    other = "Who wrote it?"
    assert server.ask(client.path, client.body(other, []))[1] <= len(other) + TURN + free
