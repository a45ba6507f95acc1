"""The form that an answer must have."""

import json as json_text
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from tiny_llm_lab.types.errors import UserError

MAX_GRAMMAR_CHARS: Final = 65_536  # of a schema, an expression, a grammar, or all choices together
MAX_CHOICES: Final = 1024


@dataclass(frozen=True)
class StructuredOutputs:
    """Exactly one form; the other fields stay None. The names are vLLM's.

    `json` also takes a schema as a mapping, and `choice` a list; both are kept hashable. Raises UserError for
    no form, for several, and for a wrong type or size. Whether a schema, an expression or a grammar is usable
    is only known once it is compiled.
    """

    json: str | Mapping[str, object] | None = None  # a JSON schema, kept as text
    json_object: bool | None = None  # True = any JSON object
    regex: str | None = None  # the whole answer matches it
    choice: tuple[str, ...] | None = None  # the answer is one of these
    grammar: str | None = None  # in Lark's EBNF

    def __post_init__(self) -> None:
        choice: object = self.choice  # as passed; the annotation is for the value that is kept
        if isinstance(choice, list):
            object.__setattr__(self, "choice", tuple(choice))
        given = [each.name for each in fields(self) if getattr(self, each.name) not in (None, False)]
        if len(given) != 1:
            result = ", ".join(given) or "none"
            raise UserError(
                f"structured_outputs needs one of json, json_object, regex, choice, grammar, not {result}"
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.json_object not in (None, False, True):
            raise UserError(f"json_object must be True or left out, not {self.json_object!r}")
        if self.choice is not None:
            _check_choice(self.choice)
        for name in ("json", "regex", "grammar"):
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise UserError(f"{name} must be text, not {type(text).__name__}")
            _check_text(name, text or "")


def _schema_text(schema: object) -> str:
    try:
        if isinstance(schema, str):
            _check_text("json", schema)
            schema = json_text.loads(schema)
        if isinstance(schema, Mapping | bool):
            _check_text("json", json_text.dumps(schema, ensure_ascii=False))
            return json_text.dumps(schema, allow_nan=False)
    except RecursionError:
        raise UserError("the JSON schema is nested too deeply: simplify it") from None
    except (TypeError, ValueError) as error:
        reason = "it has NaN or a number beyond 1e308" if "Out of range" in str(error) else error
        raise UserError(f"structured_outputs has a schema that is not JSON ({reason}): fix it") from None
    raise UserError(f"a JSON schema must be an object, not {type(schema).__name__}")


def _check_choice(choice: object) -> None:
    if not isinstance(choice, tuple) or not all(isinstance(each, str) and each for each in choice):
        raise UserError("choice must be a list of texts with at least one character each")
    if not 1 <= len(choice) <= MAX_CHOICES:
        raise UserError(f"choice must have 1 to {MAX_CHOICES} texts, not {len(choice)}")
    _check_text("choice", "".join(choice))


def _check_text(name: str, text: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARS:
        raise UserError(f"{name} has {len(text)} characters, more than {MAX_GRAMMAR_CHARS}: shorten it")
    try:
        text.encode()
    except UnicodeEncodeError:  # a client may send half of an emoji as an escape
        raise UserError(f"{name} has half of a surrogate pair: write whole characters") from None
