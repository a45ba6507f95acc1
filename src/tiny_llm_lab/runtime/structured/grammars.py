"""Forms of answers, compiled for one tokenizer."""

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.structured.grammar_processor import GrammarProcessor
from tiny_llm_lab.types import LogitsProcessor, SamplingParams, StructuredOutputs, Tokenizer, UserError

if TYPE_CHECKING:  # it exists for the type checker only
    from llguidance._lib import JsonCompileOptions

# Compiling recurses as deeply as rules refer to rules, which overflows a stack of the usual size.
_STACK_BYTES: Final = 256 << 20
# The time to compile grows with the cube of the rules that refer to each other: 20 s for 3,000.
_MAX_RULES: Final = 512
_RULE: Final = re.compile(r'^[^"/:\n\r]*:', re.MULTILINE)
# A model that may write any whitespace may write nothing else.
_JSON: "Final[JsonCompileOptions]" = {"whitespace_pattern": " ?"}


class Grammars:
    """Compiles forms for one tokenizer, of which a model computes `vocab_size` logits."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Nothing is built before the first form."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._library: LLTokenizer | None = None
        self._lock = threading.Lock()  # one form at a time, so that a slow one takes one thread and not all

    def processor(self, form: StructuredOutputs) -> GrammarProcessor:
        """Bars, for one request, every token that does not continue `form`.

        May take a second: not to be called where others wait. Raises UserError for a form that cannot be
        used, and for a tokenizer that no form can be compiled for.
        """
        with self._lock:
            self._library = self._library or _library_tokenizer(self._tokenizer, self._vocab_size)
            matcher = _on_large_stack(self._compile, form)
        return GrammarProcessor(matcher, self._tokenizer.eos_token_ids)

    def _compile(self, form: StructuredOutputs) -> LLMatcher:
        assert self._library is not None
        try:
            limits = LLParserLimits(verbose_errors=False)
            matcher = LLMatcher(self._library, _grammar(form), log_level=0, limits=limits)
        except ValueError as error:
            raise _unusable(str(error)) from None
        if matcher.is_error():
            raise _unusable(matcher.get_error())
        return matcher


def processors_for(sampling: SamplingParams, grammars: Grammars) -> tuple[LogitsProcessor, ...]:
    """The processors that a request of `sampling` needs; time and errors as `Grammars.processor`."""
    form = sampling.structured_outputs
    return () if form is None else (grammars.processor(form),)


def _grammar(form: StructuredOutputs) -> str:
    if form.json is not None:
        assert isinstance(form.json, str)
        return LLMatcher.grammar_from_json_schema(form.json, overrides=_JSON)
    if form.regex is not None:
        return LLMatcher.grammar_from_regex(form.regex)
    if form.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, form.choice)))
    if form.grammar is not None:
        if (num_rules := len(_RULE.findall(form.grammar))) > _MAX_RULES:
            raise UserError(f"the grammar has {num_rules} rules, more than {_MAX_RULES}: simplify it")
        return LLMatcher.grammar_from_lark(form.grammar)
    return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=_JSON)


def _library_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    if not isinstance(tokenizer, CheckpointTokenizer):
        raise UserError("structured outputs do not work with this tokenizer: load one with load_checkpoint")
    try:
        return LLTokenizer(
            tokenizer.definition, n_vocab=vocab_size, eos_token=sorted(tokenizer.eos_token_ids)
        )
    except Exception as error:  # whatever the parser raises
        raise UserError(
            f"structured outputs do not take this tokenizer ({_first_line(str(error))}): choose another model"
        ) from None


def _on_large_stack(
    compile_form: Callable[[StructuredOutputs], LLMatcher], form: StructuredOutputs
) -> LLMatcher:
    result: Future[LLMatcher] = Future()

    def run() -> None:
        try:
            result.set_result(compile_form(form))
        except BaseException as error:
            result.set_exception(error)

    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name="grammar", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    return result.result()


def _unusable(reason: str) -> UserError:
    return UserError(f"structured_outputs cannot be used ({_first_line(reason)}): fix the schema or grammar")


def _first_line(text: str) -> str:
    return " ".join(text.split("\n")[0].split())[:200]
