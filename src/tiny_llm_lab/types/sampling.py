"""How one request picks its tokens and when it stops, and the form that its answer must have."""

import json as json_text
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Final

from tiny_llm_lab.types.errors import UserError, require

MAX_GRAMMAR_CHARS: Final = 65_536  # of an expression, a grammar, or all choices together
MAX_SCHEMA_CHARS: Final = 2**19  # 117 tools of an MCP server have 170,000
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
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise UserError(f"{name} must be text, not {type(text).__name__}")
            _check_text(name, text or "")


def _schema_text(schema: object) -> str:
    try:
        if isinstance(schema, str):
            _check_text("json", schema, MAX_SCHEMA_CHARS)
            schema = json_text.loads(schema)
        if isinstance(schema, Mapping | bool):
            _check_text("json", json_text.dumps(schema, ensure_ascii=False), MAX_SCHEMA_CHARS)
            return json_text.dumps(schema, allow_nan=False)
    except RecursionError:
        raise UserError("the JSON schema is nested too deeply: simplify it") from None
    except UserError:
        raise
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


def _check_text(name: str, text: str, most: int = MAX_GRAMMAR_CHARS) -> None:
    if len(text) > most:
        raise UserError(f"{name} has {len(text)} characters, more than {most}: shorten it")
    try:
        text.encode()
    except UnicodeEncodeError:  # a client may send half of an emoji as an escape
        raise UserError(f"{name} has half of a surrogate pair: write whole characters") from None


MAX_LOGPROBS: Final = 20
# Dividing logits by less, or by more, exceeds the range of float32.
MIN_TEMPERATURE: Final = 1e-6
MAX_TEMPERATURE: Final = 1e6
MAX_LOGIT_BIASES: Final = 1024
MAX_STOPS: Final = 64  # strings, and as many token ids
MAX_STOP_CHARS: Final = 1024  # of one stop string
THINK: Final = "<think>"
THINK_END: Final = "</think>"
THINK_CLOSE: Final = f"\n{THINK_END}\n\n"  # as Qwen's models close their thoughts


@dataclass(frozen=True)
class SamplingParams:
    """How one request picks its tokens and when it stops. The defaults are greedy decoding.

    `stop` also takes a single string, as one stop string. You pass `logit_bias` as a mapping, and it is kept
    as sorted pairs. Raises UserError for a value of another type or outside its range.
    """

    temperature: float = 0.0  # below 1e-6 it is kept as 0, which is greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int | None = None  # None = as many as fit in max_seq_len
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False  # with a form it stays False, because nothing can follow its end
    logprobs: int | None = None  # of each token and of so many likeliest tokens; None = off
    repetition_penalty: float = 1.0  # above 1: tokens of prompt and answer become less likely
    presence_penalty: float = 0.0  # above 0: tokens of the answer become less likely
    frequency_penalty: float = 0.0  # the same, for each time that they occur
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()  # added to logits, by token id
    min_tokens: int = 0  # no end of sequence, stop token or stop string before so many
    stop_token_ids: tuple[int, ...] = ()  # end the answer like an end of sequence, even with ignore_eos
    prompt_logprobs: int | None = None  # like logprobs, for each token of the prompt; None = off
    structured_outputs: StructuredOutputs | None = None  # the form of the answer; needs its processor
    is_thinking: bool | None = None  # the prompt ends with <think>; None = the text has no thoughts
    thinking_budget: int | None = None  # tokens of thoughts after which they are closed; None = any number
    thinking_close: str = THINK_CLOSE  # the text that closes them; a form of the answer begins behind it
    cache_salt: str = ""  # only requests of the same salt share a prefix in the cache
    detokenize: bool = True  # False: the answer has tokens alone, no text and so no stop strings
    pooling: bool = False  # no answer, but a `Completion.vector`: for a model whose task is not "generate"

    def __post_init__(self) -> None:
        stop: object = self.stop  # as passed; the annotation is for the value that is kept
        if isinstance(stop, str):
            object.__setattr__(self, "stop", (stop,))
        ids: object = self.stop_token_ids
        if isinstance(ids, list):
            object.__setattr__(self, "stop_token_ids", tuple(ids))
        self._check_types()
        if 0 < self.temperature < MIN_TEMPERATURE:  # some clients send 1e-8 for greedy
            object.__setattr__(self, "temperature", 0.0)
        if self.structured_outputs is not None:
            object.__setattr__(self, "ignore_eos", False)
        object.__setattr__(self, "logit_bias", _sorted_pairs(self.logit_bias))
        require(self._draw_checks() | self._end_checks() | self._logit_checks())

    @property
    def logit_bias_pairs(self) -> tuple[tuple[int, float], ...]:
        """(token id, bias), sorted by token."""
        assert isinstance(self.logit_bias, tuple)  # after __post_init__
        return self.logit_bias

    @property
    def changes_logits(self) -> bool:
        """Whether penalties, biases or min_tokens change what tokens are drawn from."""
        penalties = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return penalties or bool(self.logit_bias) or self.min_tokens > 0

    def num_without_stop(self, text: str) -> int:
        """In how many of the first characters of `text`, an answer so far, no stop string may end.

        Those of its thoughts, and of the blanks between them and the first word after them.
        """
        if self.is_thinking is None or not (self.is_thinking or text.lstrip().startswith(THINK)):
            return 0
        return len(text) - len(text.partition(THINK_END)[2].lstrip())

    def _draw_checks(self) -> dict[str, bool]:
        return {
            f"temperature must be 0 (greedy) or up to {MAX_TEMPERATURE:g}": (
                0 <= self.temperature <= MAX_TEMPERATURE
            ),
            "top_k must be 0 (off) or more": self.top_k >= 0,
            "top_p must be above 0 and at most 1": 0 < self.top_p <= 1,
            "min_p must be at least 0 and below 1": 0 <= self.min_p < 1,
            "seed must be 0 to 2**64 - 1": 0 <= self.seed < 2**64,
            f"logprobs must be 0 to {MAX_LOGPROBS}": _is_up_to(self.logprobs, MAX_LOGPROBS),
            f"prompt_logprobs must be 0 to {MAX_LOGPROBS}": _is_up_to(self.prompt_logprobs, MAX_LOGPROBS),
        }

    def _end_checks(self) -> dict[str, bool]:
        longest = max(map(len, self.stop), default=0)
        return {
            "max_tokens must be 1 or more": self.max_tokens is None or self.max_tokens >= 1,
            "min_tokens must be 0 or more": self.min_tokens >= 0,
            "thinking_budget must be 0 or more": (self.thinking_budget or 0) >= 0,
            f"thinking_close must have {THINK_END} once and at most {MAX_STOP_CHARS} characters": (
                self.thinking_close.count(THINK_END) == 1 and len(self.thinking_close) <= MAX_STOP_CHARS
            ),
            f"min_tokens ({self.min_tokens}) must be at most max_tokens ({self.max_tokens})": (
                self.max_tokens is None or self.min_tokens <= self.max_tokens
            ),
            "stop strings need detokenize": self.detokenize or not self.stop,
            "a stop string must not be empty": all(self.stop),
            f"stop may have at most {MAX_STOPS} strings": len(self.stop) <= MAX_STOPS,
            f"a stop string may have at most {MAX_STOP_CHARS} characters": longest <= MAX_STOP_CHARS,
            f"cache_salt may have at most {MAX_STOP_CHARS} characters": len(self.cache_salt)
            <= MAX_STOP_CHARS,
            f"stop_token_ids may have at most {MAX_STOPS} tokens": len(self.stop_token_ids) <= MAX_STOPS,
            "stop_token_ids must be 0 or more": all(0 <= token < 2**31 for token in self.stop_token_ids),
        }

    def _logit_checks(self) -> dict[str, bool]:
        presence, frequency, biases = self.presence_penalty, self.frequency_penalty, dict(self.logit_bias)
        return {
            f"repetition_penalty must be {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}": MIN_TEMPERATURE
            <= self.repetition_penalty
            <= MAX_TEMPERATURE,
            "presence_penalty must be -2 to 2": -2 <= presence <= 2,
            "frequency_penalty must be -2 to 2": -2 <= frequency <= 2,
            f"logit_bias may have at most {MAX_LOGIT_BIASES} tokens": len(biases) <= MAX_LOGIT_BIASES,
            "a token id in logit_bias must be 0 or more": all(0 <= token < 2**31 for token in biases),
            "a logit_bias must be -100 to 100": all(-100 <= each <= 100 for each in biases.values()),
        }

    def _check_types(self) -> None:
        for name in _NUMBERS:
            _check_type(name, getattr(self, name), Real, "a number")
        for name in ("top_k", "seed", "min_tokens"):
            _check_type(name, getattr(self, name), Integral, "a whole number")
        for name in ("max_tokens", "logprobs", "prompt_logprobs", "thinking_budget"):
            if getattr(self, name) is not None:
                _check_type(name, getattr(self, name), Integral, "a whole number or None")
        for name in ("ignore_eos", "pooling", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} must be True or False, not {getattr(self, name)!r}")
        stop: object = self.stop
        if not isinstance(stop, tuple) or not all(isinstance(each, str) for each in stop):
            raise UserError(f"stop must be a string or a tuple of strings, not {stop!r}")
        ids: object = self.stop_token_ids
        if not isinstance(ids, tuple):
            raise UserError(f"stop_token_ids must be a list of token ids, not {ids!r}")
        for token in ids:
            _check_type("a token of stop_token_ids", token, Integral, "a whole number")
        salt: object = self.cache_salt
        if not isinstance(salt, str) or not salt.isprintable():
            raise UserError(f"cache_salt must be printable text, not {salt!r}")
        form: object = self.structured_outputs
        if form is not None and not isinstance(form, StructuredOutputs):
            raise UserError(f"structured_outputs must be StructuredOutputs, not {form!r}")


_NUMBERS = "temperature top_p min_p repetition_penalty presence_penalty frequency_penalty".split()


def _is_up_to(value: int | None, most: int) -> bool:
    return value is None or 0 <= value <= most


def _check_type(name: str, value: object, kind: type, meaning: str) -> None:
    # To Python True is a number, but a request does not mean it as a number.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{name} must be {meaning}, not {value!r}")


def _sorted_pairs(given: object) -> tuple[tuple[int, float], ...]:
    entries: Iterable[object] = given.items() if isinstance(given, Mapping) else _as_tuple(given)
    pairs: list[tuple[int, float]] = []
    for entry in entries:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise UserError(f"logit_bias must be a mapping from token ids to numbers, not {given!r}")
        _check_type("a token of logit_bias", entry[0], Integral, "a whole number")
        _check_type("a logit_bias", entry[1], Real, "a number")
        pairs.append(entry)
    return tuple(sorted(pairs))


def _as_tuple(given: object) -> tuple[object, ...]:
    if not isinstance(given, tuple):
        raise UserError(f"logit_bias must be a mapping from token ids to numbers, not {given!r}")
    return given
