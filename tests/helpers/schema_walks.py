"""Random answers of a form, checked by `jsonschema`: `python -m tests.helpers.schema_walks SUITE...`.

A SUITE is a folder such as tests/draft2020-12 of the official JSON Schema test suite, which the sdist of
`jsonschema` has in json/. It prints how many schemas are kept and refused, and answers that are invalid.
"""

import collections
import json
import random
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from tiny_llm_lab.runtime.structured.grammars import grammar_of_schema
from tiny_llm_lab.types import UserError

_LONGEST = 400  # bytes of an answer


def suite_schemas(folder: Path) -> Iterator[tuple[str, Mapping[str, object] | bool]]:
    """Every schema of the suite and its name."""
    for path in sorted(folder.rglob("*.json")):
        if "regex" in path.stem:
            continue  # jsonschema has Python's expressions, whose classes are others
        for case in json.loads(path.read_text()):
            yield f"{folder.name}/{path.stem}: {case['description']}", case["schema"]


def walk(grammar: str, seed: int) -> str | None:
    """A random text of the form; None if it does not end. Raises ValueError for what can't be used."""
    library, draw = LLTokenizer("byte"), random.Random(seed)
    matcher = LLMatcher(library, grammar, log_level=0)
    text = bytearray()
    while not matcher.is_error() and len(text) < _LONGEST:
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [token for token in range(library.vocab_size) if mask >> token & 1]
        if matcher.is_error() or not allowed:
            break
        ends, allowed = [each for each in allowed if each > 255], [each for each in allowed if each < 256]
        if ends and (not allowed or draw.random() < 0.5):
            return text.decode()
        closing = [token for token in allowed if token in b'"}]']
        token = draw.choice(closing if closing and draw.random() < 0.3 else allowed)
        matcher.consume_token(token)
        text.append(token)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return None


def main() -> int:
    """Walk the forms of a suite."""
    import jsonschema

    drafts = {"draft7": jsonschema.Draft7Validator, "draft2019-09": jsonschema.Draft201909Validator}

    counts: collections.Counter[str] = collections.Counter()
    for name, schema in chain.from_iterable(suite_schemas(Path(each)) for each in sys.argv[1:]):
        try:
            grammar = grammar_of_schema(json.dumps(schema))
            answers = [walk(grammar, seed) for seed in range(20)]
        except UserError as error:
            counts["refused by the pass"] += 1
            print(f"refused  {name}: {error}")
            continue
        except ValueError as error:
            counts["refused by llguidance"] += 1
            print(f"foreign  {name}: {str(error).splitlines()[0][:100]}")
            continue
        counts["kept"] += 1
        for answer in filter(None, answers):
            counts["answers"] += 1
            validator = drafts.get(name.split("/")[0], jsonschema.Draft202012Validator)
            if error := next(validator(schema).iter_errors(json.loads(answer)), None):
                counts["invalid"] += 1
                print(f"INVALID  {name}: {answer[:80]} {error.message[:100]}")
    print(dict(counts))
    return int(counts["invalid"] > 0)


if __name__ == "__main__":
    sys.exit(main())
