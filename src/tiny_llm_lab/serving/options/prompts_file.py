"""Reads a file of prompts: plain lines, a JSON list, or one JSON value a line."""

import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final, cast

from tiny_llm_lab.runtime.console.input_file import read_text
from tiny_llm_lab.types import PRIORITY_CLASSES, Prompt, SamplingParams, UserError

# Fields we refuse: commands don't show log probabilities, and week 2's loops have no structured outputs.
_WITHOUT: Final = ("logprobs", "prompt_logprobs", "logit_bias", "structured_outputs", "detokenize")
_SAMPLING: Final = [each.name for each in fields(SamplingParams) if each.name not in _WITHOUT]
_FIELDS: Final = (*_SAMPLING, "arrival_s", "priority", "priority_class")


def read_prompts(
    source: str, sampling: SamplingParams, raw: bool = False, known: Sequence[str] = _FIELDS
) -> list[Prompt]:
    """The prompts of file `source` (- is stdin); `sampling` holds where an entry says nothing else.

    An entry has a prompt and fields of `known`; others are refused. Blanks around a prompt go unless `raw`.
    Entry i draws with seed + i, so that equal prompts need not get equal answers.
    """
    text = read_text(source)
    try:
        entries = _entries(text, source)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UserError(f"{source}: not JSON at {where}: {error.msg}") from None
    except RecursionError:
        raise UserError(f"{source}: JSON is nested too deeply: give a list of prompts") from None
    if not entries:
        raise UserError(f"{source} is empty: write one prompt per line")
    prompts = []
    for number, entry in enumerate(entries):
        try:
            prompts.append(_prompt(entry, drawing_apart(sampling, number), raw, known))
        except UserError as error:
            raise UserError(f"{source}: entry {number}: {error}") from None
    return prompts


def drawing_apart(sampling: SamplingParams, number: int) -> SamplingParams:
    """`sampling` for request `number` of several, with a seed of its own; after the last seed comes 0."""
    return replace(sampling, seed=(sampling.seed + number) % 2**64)


def _entries(text: str, source: str) -> Sequence[object]:
    if source.endswith(".jsonl"):
        return [_json_line(line, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if source.endswith(".json") or (source == "-" and text.lstrip().startswith("[")):
        value = json.loads(text)
        if not isinstance(value, list):
            raise UserError(f"{source}: expected a JSON list of prompts")
        return value
    return [line for line in text.split("\n") if line.strip()]


def _json_line(line: str, number: int) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(error.msg, "\n" * (number - 1) + line, number - 1 + error.pos) from None


def _prompt(entry: object, sampling: SamplingParams, raw: bool, known: Sequence[str]) -> Prompt:
    if isinstance(entry, str):
        return Prompt(cleaned(entry, raw, "it"), sampling)
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
        raise UserError('expected a string or an object with a string "prompt"')
    given: dict[str, Any] = {key: value for key, value in entry.items() if key != "prompt"}
    if unknown := [key for key in given if key not in known]:
        raise UserError(f"unknown field {unknown[0]!r}: known are prompt, {', '.join(known)}")
    own = {key: given.pop(key) for key in list(given) if key not in _SAMPLING}
    _check(**own)
    if isinstance(given.get("stop"), list):
        given["stop"] = tuple(given["stop"])
    return Prompt(cleaned(entry["prompt"], raw, "it"), replace(sampling, **given), **own)


def _check(arrival_s: object = 0.0, priority: object = 0, priority_class: object = "interactive") -> None:
    # True is an int to Python, but an entry must write a number.
    if type(arrival_s) not in (int, float) or not 0 <= cast(float, arrival_s) < math.inf:
        raise UserError(f"arrival_s must be 0 or more seconds, not {json.dumps(arrival_s)}")
    if type(priority) is not int:
        raise UserError(f"priority must be a whole number, not {json.dumps(priority)}")
    if priority_class not in PRIORITY_CLASSES:
        raise UserError(f"priority_class is {' or '.join(PRIORITY_CLASSES)}, not {priority_class!r}")


def cleaned(text: str, raw: bool, source: str) -> str:
    """`text` without the blanks around it; `raw` keeps them, but for one line break at the end.

    A text of blanks alone becomes empty. Raises UserError when `source` held bytes that are not UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # Python reads such bytes, and half of a \\ud83d pair in JSON, as surrogates
        raise UserError(f"{source} is not UTF-8 text: convert it first") from None
    return text.removesuffix("\n") if raw and text.strip() else text.strip()
