"""Forms of answers, compiled for one tokenizer."""

import contextlib
import json
import logging
import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLTokenizer

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.structured.compiling import COSTLY, NOTHING, compiled, on_large_stack
from tiny_llm_lab.runtime.structured.grammar_processor import GrammarProcessor
from tiny_llm_lab.runtime.structured.json_schema.schema_pass import places_of, plain_schema
from tiny_llm_lab.runtime.structured.thoughts import answer_processors
from tiny_llm_lab.runtime.structured.trials import RefusedFormError, TokenizerArguments, Trials
from tiny_llm_lab.types import LogitsProcessor, SamplingParams, StructuredOutputs, Tokenizer, UserError

if TYPE_CHECKING:  # it exists for the type checker only
    from llguidance._lib import JsonCompileOptions

_LOG: Final = logging.getLogger("tiny_llm.engine")
FORM_TIMEOUT_S: Final = 2.0
_REMEMBERED: Final = 64  # grammars of forms
_SHORT_CHOICE: Final = 4096  # characters of all texts
# The time to compile grows with the cube of the rules that refer to each other: 20 s for 3,000.
_MAX_RULES: Final = 512
_RULE: Final = re.compile(r'^[^"/:\n\r]*:', re.MULTILINE)
# A model that may write any whitespace may write nothing else.
_JSON: "Final[JsonCompileOptions]" = {"whitespace_pattern": " ?"}


class Grammars:
    """Compiles forms for one tokenizer, of which a model computes `vocab_size` logits.

    A form that somebody wrote is tried in another process first, because compiling it may take any time and
    memory, or end the process.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, timeout_s: float = FORM_TIMEOUT_S) -> None:
        """A form may take `timeout_s` seconds of CPU time. Nothing is built before the first form.

        Sets tokenizer.
        """
        self.tokenizer, self._vocab_size = tokenizer, vocab_size
        self._library: LLTokenizer | None = None
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._trials = Trials(partial(_definition, tokenizer, vocab_size), timeout_s)
        # One at a time, because a step of the engine waits for each thread that runs Python.
        self._rewriting = threading.Lock()
        self._rewritten = lru_cache(_REMEMBERED)(_grammar)

    def processor(self, form: StructuredOutputs) -> GrammarProcessor:
        """Bars, for one request, every token that does not continue `form`.

        May take as long as a form may: not to be called where others wait. Raises UserError for a form that
        cannot be used, and for a tokenizer that no form can be compiled for.
        """
        self.require(form)
        return self.compile(form)

    def require(self, form: StructuredOutputs, left: "Future[None] | None" = None) -> float:
        """Try `form`, until `left` is done; returns the CPU seconds that compiling it takes.

        Errors as `processor`.
        """
        _checkpoint_tokenizer(self.tokenizer)
        if form.json_object or (form.choice is not None and sum(map(len, form.choice)) <= _SHORT_CHOICE):
            return 0.0  # made of parts that we know
        try:
            return self._trials.require(self._grammar(form), left)
        except RefusedFormError as error:
            raise _unusable(str(error), form) from None

    def compile(self, form: StructuredOutputs) -> GrammarProcessor:
        """As `processor`, for a form that `require` has let pass, maybe in another process."""
        made = self._made()
        try:
            grammar = self._grammar(form)
            matcher = on_large_stack(self._starting, lambda: compiled(made, grammar))
        except ValueError as error:
            raise _unusable(str(error), form) from None
        return GrammarProcessor(matcher, self.tokenizer.eos_token_ids)

    def prepare(self) -> None:
        """Build now what the first `compile` would build, which lets no thread run Python meanwhile."""
        with contextlib.suppress(UserError):  # a form will raise it
            self._made()

    def _made(self) -> LLTokenizer:
        with self._lock:
            self._library = self._library or _library_tokenizer(self.tokenizer, self._vocab_size)
            return self._library

    def _grammar(self, form: StructuredOutputs) -> str:
        with self._rewriting:
            return self._rewritten(form)


def processors_for(
    sampling: SamplingParams, grammars: Grammars, prompt: Sequence[int] = ()
) -> tuple[LogitsProcessor, ...]:
    """The processors that a request of `sampling` needs; time and errors as `Grammars.processor`.

    `prompt` says whether the thoughts of a thinking_budget are open, if sampling.is_thinking does not.
    """
    asked = sampling.structured_outputs
    form = None if asked is None else grammars.processor(asked)
    return answer_processors(sampling, prompt, grammars.tokenizer, form)


def grammar_of_schema(schema: str) -> str:
    """llguidance's grammar of a JSON schema. Raises UserError for what can't be kept."""
    plain = plain_schema(json.loads(schema))
    if plain.left_out:
        _LOG.info("a JSON schema has %s, which assert nothing here", ", ".join(plain.left_out[:8]))
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(plain.schema), overrides=_JSON)
    except ValueError:  # more than some 120 levels
        raise UserError("the JSON schema is nested too deeply: simplify it") from None


def _grammar(form: StructuredOutputs) -> str:
    if form.json is not None:
        assert isinstance(form.json, str)
        return grammar_of_schema(form.json)
    if form.regex is not None:
        return LLMatcher.grammar_from_regex(form.regex)
    if form.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, form.choice)))
    if form.grammar is not None:
        if (num_rules := len(_RULE.findall(form.grammar))) > _MAX_RULES:
            raise UserError(f"the grammar has {num_rules} rules, more than {_MAX_RULES}: simplify it")
        return LLMatcher.grammar_from_lark(form.grammar)
    return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=_JSON)


def _checkpoint_tokenizer(tokenizer: Tokenizer) -> CheckpointTokenizer:
    if not isinstance(tokenizer, CheckpointTokenizer):
        raise UserError("structured outputs do not work with this tokenizer: load one with load_checkpoint")
    return tokenizer


def _definition(tokenizer: Tokenizer, vocab_size: int) -> TokenizerArguments:
    own = _checkpoint_tokenizer(tokenizer)
    return {"tokenizer": own.definition, "n_vocab": vocab_size, "eos_token": sorted(own.eos_token_ids)}


def _library_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    made = _checkpoint_tokenizer(tokenizer)
    try:
        return LLTokenizer(made.definition, n_vocab=vocab_size, eos_token=sorted(made.eos_token_ids))
    except Exception as error:  # whatever the parser raises
        raise UserError(
            f"structured outputs do not take this tokenizer ({_first_line(str(error))}): choose another model"
        ) from None


def _unusable(reason: str, form: StructuredOutputs) -> UserError:
    """llguidance's `reason` in our words, with the places in a schema that may be meant."""
    schema = json.loads(form.json) if isinstance(form.json, str) else {}
    words, places = _first_line(reason), list[str]()
    if "Unsatisfiable" in reason or reason == NOTHING:
        words = NOTHING
    elif reason == COSTLY:
        words = COSTLY
    elif "oneOf" in reason:
        words = "a value could fit two schemas of a oneOf: write anyOf, or give each a const"
        places = places_of(schema, "oneOf")
    elif "disjoint" in reason:
        words = "two patterns of patternProperties may match one name: write one of them"
        places = places_of(schema, "patternProperties")
    elif "regex" in reason:
        lines = reason.split("\n")
        message = [each.removeprefix("error: ") for each in lines if each.startswith("error: ")] or lines
        words = f"an expression can't be read: {_first_line(message[0])}"
        places = [each for line in lines[1:2] for each in places_of(schema, "pattern", line.strip())]
    where = f" at {', '.join(places[:3])}" if places else ""
    return UserError(f"structured_outputs cannot be used{where} ({words}): fix the schema or grammar")


def _first_line(text: str) -> str:
    return " ".join(text.split("\n")[0].split())[:200]
