"""Chats whose answers have a form: JSON objects, calls of functions, haikus."""

import json
import random
from dataclasses import dataclass
from typing import Any, Final

from .chat_markup import with_functions
from .functions import Asked, Function, make_asked, make_class_name, other_function
from .haikus import IN_HAIKUS, make_haiku
from .records import Record, Value, make_record
from .smalltalk import UNKNOWN, make_greeting, make_small_talk
from .texts import texts

# What a part of an answer counts in the loss. VALUE: found in what the user said. SURE: follows from what was
# said before. FORCED: only the form gives it, such as a key; it counts a little, for its spelling in tokens.
VALUE: Final = 4.0
SURE: Final = 1.0
FORCED: Final = 0.1

_TEXTS: Final = texts("forms")
SYSTEMS: Final = _TEXTS["systems"]
_EXTRACTING: Final = _TEXTS["extracting"]
_BEFORE_SCHEMA: Final = _TEXTS["before_schema"]
_ASK_FOR_BLOCK: Final = (
    "\n\nReturn the correct JSON response within a ```json codeblock. not the JSON_SCHEMA",
    "\nAnswer within a ```json codeblock.",
)
_CLASSES: Final = _TEXTS["classes"]


@dataclass(frozen=True)
class Part:
    """Some text of a message, and what its tokens count in the loss."""

    text: str
    weight: float = 0.0


@dataclass(frozen=True)
class Message:
    """One turn of a chat."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


def make_chat(rng: random.Random, held_out: bool = False) -> list[Message]:
    """A chat of one to nine turns; with `held_out`, about words that training never sees."""
    kind = rng.random()
    if kind < 0.45:
        return _free_forms(rng, held_out)
    if kind < 0.57:
        return _schema_forms(rng, held_out)
    if kind < 0.67:
        return _called_forms(rng, held_out)
    if kind < 0.94:
        return _calls(rng, held_out)
    return _haikus(rng) if kind < 0.98 else _unknown(rng, held_out)


def _said(role: str, text: str, weight: float = 0.0) -> Message:
    return Message(role, (Part(text, weight),))


def _opened(system: str) -> list[Message]:
    return [_said("system", system)] if system else []


def _free_forms(rng: random.Random, held_out: bool) -> list[Message]:
    """The schema is in the form of the answer only, so no key can be known."""
    chat = _opened(rng.choice(_EXTRACTING))
    for _ in range(rng.choice((1, 1, 2, 3))):
        record = make_record(rng, held_out)
        chat += [_said("user", record.text), Message("assistant", object_parts(record.fields, FORCED))]
    return chat


def _schema_forms(rng: random.Random, held_out: bool) -> list[Message]:
    """The schema is in the first message, as some clients write it, and the keys follow from it."""
    record = make_record(rng, held_out)
    schema = json.dumps(make_schema(record, _class(rng)), indent=2 if rng.random() < 0.7 else None)
    chat, before = _opened(rng.choice(_BEFORE_SCHEMA).format(schema)), ""
    answer = object_parts(record.fields, SURE)
    if rng.random() < 0.5:
        before = rng.choice(_ASK_FOR_BLOCK)
        answer = (Part("```json\n", SURE), *answer, Part("\n```", SURE))
    return [*chat, _said("user", record.text + before), Message("assistant", answer)]


def _called_forms(rng: random.Random, held_out: bool) -> list[Message]:
    """The answer is the call of a function that the client made of a schema."""
    record = make_record(rng, held_out)
    parameters = tuple((key, _type(value)) for key, value in record.fields)
    function = Function(_class(rng), parameters)
    chat = _opened(with_functions(rng.choice(_EXTRACTING), [function.as_tool()]))
    return [*chat, _said("user", record.text), Message("assistant", call_parts(function, record.fields))]


def _calls(rng: random.Random, held_out: bool) -> list[Message]:
    """Questions, calls, results and what is said about them; some turns need no function."""
    asked = [make_asked(rng, held_out) for _ in range(rng.choice((1, 1, 2)))]
    functions = [*dict.fromkeys(each.function for each in asked)]
    while rng.random() < 0.35:
        functions.append(other_function(rng, asked[0]))
    rng.shuffle(functions)
    system = rng.choice((*SYSTEMS, f"First call the `{asked[0].function.name}` tool, then answer."))
    chat = _opened(with_functions(system, [each.as_tool() for each in functions]))
    for each in asked:
        if rng.random() < 0.3 and not system.startswith("First"):
            talk = make_greeting(rng) if rng.random() < 0.5 else make_small_talk(rng)
            chat += [_said("user", talk.user), _said("assistant", talk.assistant, SURE)]
        chat += _one_call(
            each, "Hello" if system.startswith("First") and not each.arguments else each.question
        )
        system = ""
    return chat


def _one_call(asked: Asked, question: str) -> list[Message]:
    return [
        _said("user", question),
        Message("assistant", call_parts(asked.function, asked.arguments)),
        _said("user", f"<tool_response>\n{asked.result}\n</tool_response>"),
        _said("assistant", asked.answer, 2 * SURE),
    ]


def _unknown(rng: random.Random, held_out: bool) -> list[Message]:
    """A question that would need a function, without one."""
    question = make_asked(rng, held_out).question
    return [*_opened(rng.choice(SYSTEMS)), _said("user", question), _said("assistant", UNKNOWN, SURE)]


def _haikus(rng: random.Random) -> list[Message]:
    in_haikus = rng.random() < 0.3
    chat = _opened(rng.choice(IN_HAIKUS if in_haikus else SYSTEMS))
    turn = make_haiku(rng, in_haikus)
    return [*chat, _said("user", turn.user), _said("assistant", turn.assistant, SURE)]


def call_parts(function: Function, arguments: tuple[tuple[str, Value], ...]) -> tuple[Part, ...]:
    """A call as the model writes it."""
    begin = f'<tool_call>\n{{"name": "{function.name}", "arguments": '
    return (Part(begin, SURE), *object_parts(arguments, SURE), Part("}\n</tool_call>", SURE))


def object_parts(fields: tuple[tuple[str, Value], ...], key_weight: float) -> tuple[Part, ...]:
    """A JSON object as `json.dumps` writes it, its values apart from the rest.

    Where its keys are forced, its first brace is too, and counts nothing: nobody asked for JSON.
    """
    if not fields:
        return (Part("{}", SURE),)
    parts = []
    for number, (key, value) in enumerate(fields):
        parts.append(Part(", " if number else "{", key_weight if number or key_weight == SURE else 0.0))
        parts += [Part(f'"{key}"', key_weight), Part(": ", SURE)]
        parts.append(Part(json.dumps(value), VALUE))
    return (*parts, Part("}", key_weight))


def _class(rng: random.Random) -> str:
    return rng.choice(_CLASSES) if rng.random() < 0.6 else make_class_name(rng)


def _type(value: Value) -> str:
    return {int: "integer", float: "number", str: "string", tuple: "array"}[type(value)]


def make_schema(record: Record, title: str) -> dict[str, Any]:
    """The JSON schema of a record, as pydantic writes it."""
    properties: dict[str, Any] = {}
    for key, value in record.fields:
        properties[key] = {"title": key.replace("_", " ").title(), "type": _type(value)}
        if isinstance(value, tuple):
            properties[key] = {"items": {"type": "string"}, **properties[key]}
    required = [key for key, _ in record.fields]
    return {"properties": properties, "required": required, "title": title, "type": "object"}
