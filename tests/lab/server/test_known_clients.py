"""What known clients send, in their shapes and our words, finds all that was computed before."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.real_server import client_of

from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings

BLOCK = 16  # tokens, which are bytes here
TURN = 130  # a new question, and what a template writes around it
HYBRIDS = ("qwen3_5", "qwen3_6", "qwen3_8")
# The end of a prompt that history has not: how to think.
TAILS = dict.fromkeys(("qwen3", "qwen3_coder", "llama3_1", *HYBRIDS), 6) | {"qwen3_8": 40}


def turn(role, content):
    return {"role": role, "content": content}


def words(name, count):
    """A text of `count` words that only `name` says."""
    return " ".join(f"{name}{number}" for number in range(count))


def tools(*names, schema="parameters", **more):
    text = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return [{"name": name, "description": words(name, 12), schema: text, **more} for name in names]


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
CALL = {"name": "read", "arguments": '{"path": "a.txt"}'}
FILE, SAYS, NEXT = words("line", 30), turn("assistant", "It has lines."), turn("user", "And then?")
CALLED = turn("assistant", None) | {"tool_calls": [{"id": "c", "type": "function", "function": CALL}]}
USE = {"type": "tool_use", "id": "c", "name": "read", "input": {"path": "a.txt"}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": FILE}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": FILE}
STEPS = {  # a tool's result
    CHAT: [CALLED, turn("tool", FILE) | {"tool_call_id": "c"}],
    MESSAGES: [turn("assistant", [USE]), turn("user", [RESULT])],
    RESPONSES: [{"type": "function_call", "call_id": "c", **CALL}, OUTPUT],
}


@dataclass(frozen=True)
class Client:
    """Turns before and behind a question, and other fields of a body; texts may contain the {question}."""

    before: Any = ()
    behind: Any = ()
    fields: Any = ()
    path: str = CHAT
    again: int = 0  # characters that come once more behind each new question

    def body(self, question, num_steps):
        later = [*STEPS[self.path], SAYS, NEXT][: (0, 2, 4)[num_steps]]
        asked = turn("user", [{"type": "text", "text": question}])
        new = [*later, *self.behind, asked] if self.again else [asked, *self.behind, *later]
        turns, limit = (
            ("input", "max_output_tokens") if self.path == RESPONSES else ("messages", "max_tokens")
        )
        body = {"model": "gpt-9", limit: 1, turns: [*self.before, *new], **dict(self.fields)}
        return json.loads(json.dumps(body).replace("{question}", str(sum(map(ord, question)))))


def coding_tool(system, *before, behind=()):
    given = [{"type": "function", "function": each} for each in tools("read", "bash")]
    return Client([turn("system", system), *before], behind, {"tools": given})


BILLING = "x-anthropic-billing-header: cc_version=2.1.332.{question}; cc_entrypoint=cli;"
SYSTEM = [{"type": "text", "text": each} for each in (BILLING, "You code.", words("claude", 60))]
CLAUDE = {"system": SYSTEM, "tools": tools("read", "edit", schema="input_schema")}
CODEX = {
    "instructions": words("codex", 50),
    "tools": [*tools("read", type="function"), {"type": "web_search"}],
}
RULES = [turn("developer", words(name, 20)) for name in ("rules", "skills")]
EXAMPLE, OK = turn("user", words("example", 15)), turn("assistant", "Ok.")
CLIENTS = {
    "Claude Code": Client((), [turn("system", words("folder", 15))], CLAUDE, MESSAGES),
    "Codex": Client(RULES, fields=CODEX, path=RESPONSES),
    "qwen-code": coding_tool(words("qwen", 70), turn("user", words("setup", 20)), OK),
    "opencode": coding_tool(words("open", 50)),
    "pi": coding_tool(words("pi", 20)),
    "Continue": coding_tool(words("continue", 30)),
    "cline": coding_tool(words("cline", 70), behind=[turn("user", "<environment>{question}</environment>")]),
    "aider": Client([turn("system", words("aider", 60)), EXAMPLE, OK], [turn("user", FILE), OK], again=400),
}


@pytest.fixture(scope="module", params=TAILS)
def server(request, tmp_path_factory, kernels_on):
    """The name of a template, and a client of the one engine that has it."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    shape = "qwen3.5-shrunk" if request.param in HYBRIDS else "qwen3-shrunk"
    qwen_like_folder(folder, f"{shape},positions=8192", request.param)
    settings = ModelSettings(str(folder), engine=EngineSettings(state_cache_interval=BLOCK))
    with client_of(settings, ("mine", "*")) as http:
        assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["mine"]
        yield request.param, http


def counts(answer):
    """The tokens of a prompt, and how many of them were computed."""
    assert answer.status_code == 200, answer.text
    usage = {each.replace("prompt", "input"): value for each, value in answer.json()["usage"].items()}
    if "input_tokens_details" in usage:
        return usage["input_tokens"], usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
    computed = usage["input_tokens"] + usage["cache_creation_input_tokens"]
    return computed + usage["cache_read_input_tokens"], computed


@pytest.mark.parametrize("name", CLIENTS)
def test_a_conversation_computes_what_it_gained(name, server):
    (template, http), client, lengths = server, CLIENTS[name], [0]
    free, known = TAILS[template] + BLOCK - 1 + client.again, 0
    for num_steps in (0, 1, 2, 2):
        whole, computed = counts(http.post(client.path, json=client.body("What is in it?", num_steps)))
        assert computed <= whole - known + free, num_steps
        lengths.append(whole)
        # Templates of models that think write an exchange again once it is over.
        known = lengths[1] if template in HYBRIDS and num_steps == 1 else whole
    _, computed = counts(http.post(client.path, json=client.body("Who wrote it?", 0)))
    assert computed <= TURN + free
