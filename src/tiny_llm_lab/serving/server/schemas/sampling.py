"""The sampling fields of every kind of completion, under all names, and how much a model may think."""

import json
import logging
import secrets
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from pydantic import BaseModel, Field, model_validator

from tiny_llm_lab.runtime.models.recommended import PRESETS
from tiny_llm_lab.runtime.models.text.template_facts import LEVELS
from tiny_llm_lab.serving.server.api import ApiError, blamed, refused
from tiny_llm_lab.types import SamplingParams, StructuredOutputs

_Value = TypeVar("_Value")
_LOG: Final = logging.getLogger("tiny_llm.server")
_MOST_NAMED: Final = 8  # unknown fields in a line of the log
# By name: why an answer is the same without the field; what to do instead; values that ask for nothing.
_TABLE: Final = tomllib.loads((Path(__file__).parent / "fields.toml").read_text(encoding="utf-8"))
IGNORED: Final[Mapping[str, str]] = _TABLE["ignored"]
REFUSED: Final[Mapping[str, str]] = _TABLE["refused"]
_HARMLESS: Final[Mapping[str, Sequence[object]]] = _TABLE["harmless"]


def require_supported(body: Mapping[str, object], taken: Collection[str]) -> None:
    """Raise ApiError for a field of `body` that asks for something, and is not among the `taken` ones.

    Fields that nobody has heard of change nothing, and the log names them.
    """
    others = sorted(body.keys() - taken)
    for name in others:
        if asks(name, body[name]):
            raise refused(name, f"is not supported: {REFUSED[name]}")
    unknown = [ascii(name[:40]) for name in others if name not in IGNORED and name not in REFUSED]
    if unknown:
        _LOG.info("unknown fields change nothing: %s", ", ".join(unknown[:_MOST_NAMED]))


def asks(name: str, value: object) -> bool:
    """Whether a field is refused where it is not taken, and its value asks for something."""
    return name in REFUSED and bool(value) and value not in _HARMLESS.get(name, ())


Prompts = str | list[str] | list[int] | list[list[int]]


def each_prompt(given: Prompts) -> list[str | list[int]]:
    """Each prompt of `given`: a text, or token ids."""
    if isinstance(given, str):
        return [given]
    tokens = [each for each in given if isinstance(each, int)]
    several = [each for each in given if not isinstance(each, int)]
    return [tokens, *several] if tokens else several


_FORMS: Final = {each.name for each in fields(StructuredOutputs)}
_GUIDED: Final = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_PLAIN: Final = ("presence_penalty", "frequency_penalty", "ignore_eos", "min_tokens", "cache_salt")
_BUDGETS: Final = ("thinking_token_budget", "thinking_budget", "reasoning_budget", "thinking_budget_tokens")
_TYPES: Final = "text, json_object or json_schema"


Form = tuple[str, str, Any]  # what asks for a form: a field, a name of StructuredOutputs, its value


def format_forms(given: Mapping[str, Any] | None, place: str = "response_format") -> Iterator[Form]:
    """The form that OpenAI's field `place` asks for. Raises ApiError."""
    kind = "text" if given is None else given.get("type")
    if given is None or kind == "text":
        return
    if kind == "json_object":
        schema = given.get("schema")  # of llama.cpp and Together
        if schema is None:
            yield place, "json_object", True
        else:
            yield place, "json", _schema(schema, f"{place}.schema")
    elif kind == "json_schema":
        named = given.get("json_schema")
        schema = named.get("schema") if isinstance(named, Mapping) else None
        yield place, "json", _schema(schema, f"{place}.schema" if "." in place else f"{place}.json_schema")
    else:
        raise refused(f"{place}.type", f"must be {_TYPES}, not {kind!r}")


def _schema(given: object, place: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        form = '{"name": ..., "schema": {...}}' if place.endswith("json_schema") else "an object"
        raise refused(place, f"must be {form}")
    return given


def finite(value: _Value) -> _Value:
    """`value`, which is repeated as JSON. Raises ValueError for a number that JSON has not."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("must not hold NaN or an infinite number") from None
    return value


MAX_CHOICES: Final = 128
MAX_COUNT: Final = 2**31  # for counts of tokens; above any model's context


class StreamOptions(BaseModel, strict=True):
    """What a stream contains besides the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class RequestFields(BaseModel, strict=True, allow_inf_nan=False, extra="ignore"):
    """The base of a request. A field that is null counts as not sent; for other fields see `fields.py`."""

    others: ClassVar[Collection[str]] = ()  # fields that limit nothing on this route

    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _require_supported(cls, body: object) -> object:
        if isinstance(body, Mapping):
            require_supported(body, {*cls.model_fields, *cls.others})
        return body


class SamplingFields(RequestFields):
    """How an answer is drawn and when it ends."""

    stream: bool | None = None

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: str | list[str] | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(None, max_length=1024)

    # vLLM's
    top_k: int | None = Field(None, ge=-1, lt=MAX_COUNT)
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0, lt=MAX_COUNT)
    stop_token_ids: list[int] | None = Field(None, max_length=1024)
    priority: int | None = Field(None, ge=-MAX_COUNT, lt=MAX_COUNT)
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | None = None  # llama.cpp's
    cache_salt: str | None = Field(None, min_length=1)

    # Most tokens of thoughts: vLLM's, DashScope's, llama.cpp's
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    reasoning_budget: int | None = None
    thinking_budget_tokens: int | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the answer is sent as events."""
        return bool(self.stream)

    def sampling_params(self, presets: Mapping[str, float], **given: Any) -> SamplingParams:
        """The parameters of the first choice; `given` are those that a route reads itself, such as logprobs.

        Without a seed one is drawn. Raises UserError, or ApiError, for a value out of range.
        """
        asked: dict[str, Any] = {"temperature": 1.0, **presets}
        for name in (*PRESETS, *_PLAIN):
            if (value := getattr(self, name)) is not None:
                asked[name] = value
        asked["top_k"] = max(0, asked.get("top_k", 0))  # -1 is off, as in vLLM
        asked["seed"] = secrets.randbits(63) if self.seed is None else self.seed % 2**64
        asked["stop"] = tuple(self.stop) if isinstance(self.stop, list) else self.stop or ()
        if self.stop_token_ids:
            asked["stop_token_ids"] = tuple(self.stop_token_ids)
        if self.logit_bias:
            asked["logit_bias"] = _biases(self.logit_bias)
        asked["structured_outputs"] = self.form()
        asked["thinking_budget"] = None if (budget := self.budget()) == -1 else budget
        return SamplingParams(**(asked | given))

    def budget(self) -> int | None:
        """The least budget of thoughts; -1: any number; None: nothing is said. Raises ApiError."""
        given = {name: value for name, value in self.budgets().items() if value is not None}
        for name, value in given.items():
            if type(value) is not int or not -1 <= value < MAX_COUNT:
                raise refused(name, f"must be a number of tokens, or -1 for any number, not {value!r}")
        return min((each for each in given.values() if each >= 0), default=-1 if given else None)

    def budgets(self) -> dict[str, Any]:
        """The budgets of thoughts by field, as they were sent."""
        return {name: getattr(self, name) for name in _BUDGETS}

    def forms(self) -> Iterator[Form]:
        """The forms that the fields ask for. Raises ApiError."""
        yield from format_forms(self.response_format)
        if self.structured_outputs is not None:
            given = {name: self.structured_outputs.get(name) for name in sorted(_FORMS)}
            yield from (("structured_outputs", *each) for each in given.items())
            if not any(value is not None for value in given.values()):
                raise refused("structured_outputs", f"needs one of {', '.join(sorted(_FORMS))}")
        yield from ((name, name.removeprefix("guided_"), getattr(self, name)) for name in _GUIDED)
        yield "json_schema", "json", self.json_schema

    def form(self) -> StructuredOutputs | None:
        """The form of the answer, by whichever field. Raises UserError, or ApiError."""
        asked = self._asked_forms()
        if not asked:
            return None
        first, kind, value = asked[0]
        same = json.dumps([kind, value])  # True is not 1, and the order of keys is the order of an answer
        if different := [field for field, *form in asked if json.dumps(form) != same]:
            fields = ", ".join(dict.fromkeys([first, *different]))
            message = f"an answer has one form, and you sent {1 + len(different)}, in {fields}"
            raise ApiError(400, f"{message}: leave out all but one", param=different[-1])
        with blamed(first):
            return StructuredOutputs(**{kind: value})

    def _asked_forms(self) -> list[Form]:
        return [each for each in self.forms() if each[2] is not None]

    @property
    def form_field(self) -> str:
        """The field that asks for a form, or tools."""
        return next((field for field, *_ in self._asked_forms()), "tools")


class CompletionFields(SamplingFields):
    """What the routes that answer with choices take as well."""

    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None  # llama.cpp's

    @model_validator(mode="after")
    def _require_stream(self) -> Self:
        if self.stream_options is not None and self.stream_options.model_fields_set and not self.stream:
            raise refused("stream_options", "needs stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_running_usage(self) -> bool:
        """Whether every event of a stream has the usage so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    # int() would also take "1_0", " 5" and the digits of other scripts.
    if not all(token.isascii() and token.isdecimal() and len(token) < 20 for token in given):
        raise ApiError(400, "logit_bias: keys must be token ids", param="logit_bias")
    return {int(token): bias for token, bias in given.items()}


_THINKS: Final = {"enabled": True, "adaptive": True, "disabled": False}  # by thinking.type


@dataclass(frozen=True)
class Thinking:
    """What a request says about it."""

    effort: str | None = None  # one of `LEVELS`
    budget: int | None = None  # tokens of thoughts; -1: any number; None: nothing is said
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the template


UNSAID: Final = Thinking()


class ThinkingFields(SamplingFields):
    """The fields of a route with a chat template."""

    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None  # OpenRouter's
    thinking: dict[str, Any] | None = None  # Anthropic's and DeepSeek's
    enable_thinking: bool | None = None  # DashScope's
    preserve_thinking: bool | None = None
    think: bool | str | None = None  # Ollama's
    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's

    def effort(self) -> str | None:
        """How much the model may think. Raises ApiError for a level that nobody knows."""
        levels = self.efforts()
        for name, level in levels.items():
            if level is not None and level not in LEVELS:
                raise refused(name, f"must be one of {', '.join(LEVELS)}, not {level!r}")
        return next(filter(None, levels.values()), None)

    def efforts(self) -> dict[str, Any]:
        """The levels by field, the most exact first."""
        think = self.think if isinstance(self.think, str) else None
        other = (self.reasoning or {}).get("effort")
        return {"reasoning_effort": self.reasoning_effort, "reasoning.effort": other, "think": think}

    def asked_thinking(self) -> Thinking:
        """All that the request says. Raises ApiError for a value that nobody knows.

        A switch that is off wins, and so does a variable in chat_template_kwargs.
        """
        own, effort = dict(self.chat_template_kwargs or {}), self.effort()
        if own.get("reasoning_effort") in LEVELS:  # the template may take others
            effort = own.pop("reasoning_effort")
        switches = [each for each in self._switches() if each is not None]
        switches += [False] * (effort == "none")
        variables = {"enable_thinking": all(switches)} if switches else {}
        if self.preserve_thinking is not None:
            variables["preserve_thinking"] = self.preserve_thinking
        return Thinking(effort, self.budget(), variables | own)

    def _switches(self) -> Iterator[bool | None]:
        reasoning = self.reasoning or {}
        yield self.enable_thinking
        yield self.think if isinstance(self.think, bool) else None
        yield None if self.thinking is None else known_type(self.thinking, "thinking", _THINKS)
        yield None if reasoning.get("max_tokens") is None else True
        if not isinstance(enabled := reasoning.get("enabled"), bool | None):
            raise refused("reasoning.enabled", "must be true or false")
        yield enabled

    def budgets(self) -> dict[str, Any]:
        """See `SamplingFields.budgets`."""
        return super().budgets() | {
            "reasoning.max_tokens": (self.reasoning or {}).get("max_tokens"),
            "thinking.budget_tokens": (self.thinking or {}).get("budget_tokens"),
            "chat_template_kwargs.thinking_budget": (self.chat_template_kwargs or {}).get("thinking_budget"),
        }


def known_type(given: Mapping[str, Any], name: str, values: Mapping[str, _Value]) -> _Value:
    """What `values` has for the type of `given`. Raises ApiError for a type that is not there."""
    kind = str(given.get("type"))
    if kind not in values:
        raise refused(f"{name}.type", f"must be one of {', '.join(values)}, not {kind!r}")
    return values[kind]
