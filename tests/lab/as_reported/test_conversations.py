"""A conversation reaches the model as its template takes it, on every route."""

from dataclasses import dataclass
from typing import Any

import pytest

HI: Any = {"role": "user", "content": "hi"}
CALL: Any = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "1'}}
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@dataclass(frozen=True)
class Told:
    """What somebody reported, and a text of the prompt, or of the error if there is no prompt."""

    source: str
    template: str
    path: str
    body: dict[str, Any]
    shown: str
    status: int = 200


def chat(*messages, **fields):
    return {"messages": list(messages), **fields}


def claude(*messages, **fields):
    return {"max_tokens": 9, **chat(*messages, **fields)}


def turn(role, content):
    return {"role": role, "content": content}


def called(arguments):
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return chat(HI, answer, {"role": "tool", "tool_call_id": "c", "content": "r"}, tools=[TOOL])


SYSTEMS = (turn("system", "x"), turn("developer", "y"))
CHAT, MESSAGES, RESPONSES = "/chat/completions", "/messages", "/responses"
NEAREST = {"minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "max": "xhigh"}
EFFORTS: list[tuple[str, dict[str, Any], str | None]] = [
    # Each field, and the level of Qwen3.8 that is nearest.
    *((CHAT, chat(HI, reasoning_effort=level), near) for level, near in NEAREST.items()),
    (CHAT, chat(HI, reasoning={"effort": "low"}), "low"),
    (CHAT, chat(HI, reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "medium"}), "medium"),
    (RESPONSES, {"input": "hi", "reasoning": {"effort": "low"}}, "low"),
    (MESSAGES, claude(HI, output_config={"effort": "low"}, thinking={"type": "adaptive"}), "low"),
    (MESSAGES + "/count_tokens", claude(HI, output_config={"effort": "lowest"}), None),
    (CHAT, chat(HI, reasoning_effort="bogus"), None),
    (CHAT, chat(HI, reasoning={"effort": 3}), None),
    (RESPONSES, {"input": "hi", "reasoning": {"effort": "bogus"}}, None),
    (MESSAGES, claude(HI, output_config={"effort": "bogus"}), None),
]
RAIN = {"type": "tool_result", "content": "rain"}
RESULTS = [RAIN, {"type": "text", "text": "y"}, RAIN | {"is_error": True}]
BEGUN = turn("assistant", "Mira keeps")
ASSISTANT, NEXT = "assistant\n", "<|im_end|>\n<|im_start|>"
THOUGHT = "</think>\n\n"
BETWEEN = f"\nrain\n</tool_response>{NEXT}user\ny{NEXT}user\n<tool_response>\nError: rain\n</tool_response>"
BETWEEN += f"{NEXT}{ASSISTANT}<think>\n\n{THOUGHT}"
ITEM: Any = {"type": "message", **BEGUN}
USE: Any = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
# What a model wrote as arguments, and what Qwen3-Coder's template shows of it.
WRITTEN = ('{"a": "1', '{"a": "1'), ("[1]", "[1]"), ("3", "3"), ('"x"', "x"), ("null", "None")
BIG = '{"a": 1e999}'
BILLING = "x-anthropic-billing-header: cc_version=2.1.332.6ca; cc_entrypoint=cli;"
BLOCKS = [{"type": "text", "text": each} for each in (BILLING, "Be kind.")]
KIND = "<|im_start|>system\nBe kind.<|im_end|>"
BY_SOURCE: dict[str, list[tuple[Any, ...]]] = {
    "vllm#54616": [
        ("qwen3_8", path, body, f"Effort: {near}." if near else "must be one of", 200 if near else 400)
        for path, body, near in EFFORTS
    ]
    + [("qwen3_5", CHAT, chat(HI, reasoning_effort="low"), "assistant\n<think>\n")],
    "renderers#134": [
        ("parts_only", CHAT, chat(turn("user", "hello there")), "user\nhello there<"),
        ("parts_only", MESSAGES, claude(turn("user", "hello there")), "user\nhello there<"),
        ("parts_only", CHAT, chat(SYSTEMS[0], turn("assistant", "so"), HI), f"system\nx{NEXT}assistant\nso<"),
        ("silent", CHAT, chat(HI), "does not show what a user says", 400),
    ],
    "copilot-api PR261": [
        ("qwen2_5", MESSAGES, claude(HI, BEGUN), f"{ASSISTANT}Mira keeps"),
        ("qwen3", MESSAGES, claude(HI, BEGUN), f"{THOUGHT}Mira keeps"),
        ("qwen3_5", MESSAGES, claude(HI, BEGUN), f"{THOUGHT}Mira keeps"),
        ("qwen3", MESSAGES, claude(HI, turn("assistant", "")), f"{ASSISTANT}<think>\n\n{THOUGHT}"),
        ("qwen3", MESSAGES, claude(HI, turn("assistant", "Mira ")), "ends in a blank", 400),
        ("qwen3", MESSAGES, claude(HI, turn("assistant", [USE])), "send its tool_result", 400),
        ("qwen3", RESPONSES, {"input": [HI, {"status": "incomplete", **ITEM}]}, f"{THOUGHT}Mira keeps"),
        ("qwen3", RESPONSES, {"input": [HI, {"status": "completed", **ITEM}]}, f"keeps{NEXT}assistant\n"),
    ],
    "vllm#43995": [
        *(
            ("qwen3_coder", CHAT, called(arguments), f"<parameter=value>\n{shown}\n</parameter>")
            for arguments, shown in (*WRITTEN, (BIG, BIG))
        ),
        ("qwen3", CHAT, called('{"a": "1'), '"arguments": {"a": "1}'),
    ],
    "opencode#15059": [
        ("qwen3_5", CHAT, chat(*SYSTEMS, HI), "system\nx\n\ny<|im_end|>"),
        ("qwen3_5", CHAT, chat(HI, BEGUN, *SYSTEMS, HI), f"user\nx{NEXT}user\ny<"),
        ("qwen3_5", RESPONSES, {"instructions": "w", "input": [*SYSTEMS, HI]}, "system\nw\n\nx\n\ny<"),
        ("qwen3_5", CHAT, chat(*SYSTEMS), f"system\nx{NEXT}user\ny<"),
        ("qwen3", CHAT, chat(HI, turn("system", "x"), HI), "system\nx<"),
        ("no_system", CHAT, chat(*SYSTEMS, HI, BEGUN, HI), "user\nx\n\ny\n\nhi<"),
    ],
    "claude-code#68900": [
        ("qwen3_5", MESSAGES, claude(HI, system=BLOCKS), KIND),
        ("qwen3_5", MESSAGES, claude(HI, system=f"{BILLING}; cch=1a2;\n\nBe kind."), KIND),
        ("qwen3_5", CHAT, chat(turn("system", f"{BILLING}\nBe kind."), HI), KIND),
        ("qwen3_5", RESPONSES, {"input": [turn("developer", BLOCKS), HI]}, KIND),
        ("qwen3", MESSAGES, claude(HI, system=BILLING), "<|im_start|>user\nhi<"),
        ("qwen3", MESSAGES, claude(turn("user", BILLING)), f"user\n{BILLING}<"),
    ],
    "omlx#2483": [
        ("qwen3", MESSAGES, claude(HI, turn("user", RESULTS)), BETWEEN),
        ("qwen3_5", MESSAGES, claude(HI, SYSTEMS[0], system="w"), f"system\nw\nx{NEXT}user\nhi<"),
        ("qwen3", MESSAGES, claude(HI, BEGUN, SYSTEMS[0], HI), f"keeps{NEXT}user\nx{NEXT}user\nhi<"),
    ],
}
TOLD = [Told(source, *row) for source, rows in BY_SOURCE.items() for row in rows]


@pytest.mark.parametrize("told", TOLD, ids=lambda told: f"{told.source} {told.template}")
def test_a_conversation_as_reported(told, ask_with):
    status, text = ask_with(told.template)(told.path, **told.body)
    assert (status, told.shown in text) == (told.status, True), text
    goes_on = told.shown.endswith(("keeps", "\n"))
    assert not goes_on or text.endswith(told.shown)
