"""The calls that the events of each API add up to, after each piece of an answer: "name:arguments"."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser
from tiny_llm_lab.serving.server.chat.choice import ChatChoice
from tiny_llm_lab.serving.server.routes.messages import ContentBlocks
from tiny_llm_lab.serving.server.routes.responses import OutputItems
from tiny_llm_lab.types import Completion, EngineOutput, FinishReason, Timing

Calls = Iterator[list[str]]
Read = Callable[..., Calls]  # of the pieces, a parser, and why the answer ends


def chat(pieces: Sequence[str], made: AnswerParser, finish: FinishReason = "stop") -> Calls:
    tokenizer: Any = ByteTokenizer()
    choice, calls, ids = ChatChoice(tokenizer, made), list[str](), set[str]()
    for number, piece in enumerate(pieces, 1):
        done = Completion(0, 1, (), "", finish, Timing(0.0)) if number == len(pieces) else None
        chunk = choice.chunk(0, EngineOutput("r", (), piece, done))
        for each in json.loads(chunk or b'{"delta": {}}')["delta"].get("tool_calls", ()):
            if "id" in each:
                ids.add(each["id"])
                assert each["index"] + 1 == len(calls) + 1 == len(ids), "each call has an id of its own"
                calls.append(each["function"]["name"] + ":")
            calls[each["index"]] += each["function"]["arguments"]
        yield list(calls)


def responses(pieces: Sequence[str], made: AnswerParser, finish: FinishReason = "stop") -> Calls:
    items, calls = OutputItems(), dict[int, str]()
    for number, piece in enumerate(pieces, 1):
        for each in items.add(made.feed(piece, finish if number == len(pieces) else None)):
            if each["type"] == "response.output_item.added" and each["item"]["type"] == "function_call":
                calls[each["output_index"]] = each["item"]["name"] + ":"
            elif each["type"] == "response.function_call_arguments.delta":
                calls[each["output_index"]] += each["delta"]
        yield list(calls.values())


def messages(pieces: Sequence[str], made: AnswerParser, finish: FinishReason = "stop") -> Calls:
    blocks, calls = ContentBlocks(), dict[int, str]()
    for number, piece in enumerate(pieces, 1):
        for each in blocks.add(made.feed(piece, finish if number == len(pieces) else None)):
            if each["type"] == "content_block_start" and each["content_block"]["type"] == "tool_use":
                calls[each["index"]] = each["content_block"]["name"] + ":"
            elif each["type"] == "content_block_delta" and each["delta"]["type"] == "input_json_delta":
                calls[each["index"]] += each["delta"]["partial_json"]
        yield list(calls.values())


APIS: tuple[Read, ...] = (chat, responses, messages)
