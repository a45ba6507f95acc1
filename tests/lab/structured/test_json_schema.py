"""What becomes of each keyword, and answers of what is kept."""

import json
import random
import re
from contextlib import suppress
from pathlib import Path

import pytest
from tests.helpers.hostile_forms import hostile_form
from tests.helpers.schema_walks import walk

from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.structured.grammars import Grammars, grammar_of_schema
from tiny_llm_lab.runtime.structured.json_schema.keywords import KEYWORDS
from tiny_llm_lab.runtime.structured.json_schema.schema_pass import plain_schema
from tiny_llm_lab.types import StructuredOutputs, UserError

DOCS = Path(__file__).parents[3] / "docs" / "forms.md"
S = {"type": "string"}


def test_the_page_has_the_table_of_the_code():
    rows = re.findall(r"^\| `?([^|`]+)`? \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    found = {
        name: kind
        for kind, names in rows
        for name in re.findall(r"`([^`]+)`", names)
        if kind in KEYWORDS.values()
    }
    assert found == KEYWORDS


REWRITTEN = [
    ({"title": "t", "type": "string", "x-a": 1, "format": "path"}, S),
    ({"items": [S], "additionalItems": False}, {"prefixItems": [S], "items": False}),
    ({"exclusiveMinimum": True, "minimum": 3}, {"exclusiveMinimum": 3}),
    ({"minimum": 2**53 + 1}, {"minimum": 2**53 + 2}),
    ({"maximum": 2**53 + 1}, {"maximum": 2**53}),
    ({"minimum": -(2**63)}, {"minimum": -(2**63) + 1024}),
    ({"maxItems": 2.0}, {"maxItems": 2}),
    (
        {"propertyNames": {"enum": ["a"]}, "additionalProperties": S},
        {"properties": {"a": S}, "additionalProperties": False},
    ),
    (
        {"propertyNames": {"pattern": "^a"}},
        {"patternProperties": {"^a": True}, "additionalProperties": False},
    ),
    ({"unevaluatedProperties": False}, {"additionalProperties": False}),
    ({"anyOf": [{"not": {}}, S]}, {"anyOf": [False, S]}),
    ({"properties": {"title": {"default": 1}, "$id": S}}, {"properties": {"title": {}, "$id": S}}),
    ({"$ref": "#/a~1b/c%25", "a/b": {"c%": S}}, {"$ref": "#/$defs/s0", "$defs": {"s0": S}}),
    ({"$id": "urn:x:y", "$ref": "#/$defs/a", "$defs": {"a": S}}, {"$ref": "#/$defs/s0", "$defs": {"s0": S}}),
    (
        {"$ref": "b#c", "$defs": {"a": {"$id": "b", "$defs": {"d": {"$anchor": "c", **S}}}}},
        {"$ref": "#/$defs/s0", "$defs": {"s0": S}},
    ),
    ({"minProperties": 1}, {"minProperties": 1}),
]


@pytest.mark.parametrize(("schema", "plain"), REWRITTEN, ids=lambda each: json.dumps(each)[:40])
def test_a_schema_is_rewritten(schema, plain):
    found = plain_schema(schema).schema
    assert json.loads(json.dumps(found)) == plain
    assert plain_schema(found).schema == found, "twice is as once"


NOT_KEPT = [
    ({"const": 1846987139428634858}, "/const"),
    ({"enum": [1, [{"a": 2**53 + 1}]]}, "/enum"),
    ({"anyOf": [{}, {"items": {"enum": [-(2**63)]}}]}, "/anyOf/1/items/enum"),
    ({"const": 1e300}, "/const"),
    ({"minimum": 1e300}, "/minimum"),
    ({"maximum": -(2**63)}, "/maximum"),
    ({"multipleOf": 0}, "/multipleOf"),
    ({"maxLength": 10**9}, "/maxLength"),
    ({"minItems": -1}, "/minItems"),
    ({"properties": {"a/b": {"pattern": "a(?<=b)"}}}, "/properties/a~1b/pattern"),
    ({"pattern": "(a)\\1"}, "/pattern"),
    ({"patternProperties": {"a\\b": {}}}, "/patternProperties/a\\b"),
    ({"properties": {"a": {}}, "minProperties": 1}, "/minProperties"),
    ({"type": "object", "minProperties": 2}, "/minProperties"),
    ({"uniqueItems": True}, "/uniqueItems"),
    ({"if": {}, "then": S}, "/if"),
    ({"$ref": "other.json"}, "/$ref"),
    ({"$defs": {"a": {"$dynamicRef": "#x"}}, "$ref": "#/$defs/a"}, "/$defs/s0/$dynamicRef"),
    ({"allOf": [3]}, "/allOf/0"),
    (False, "/"),
]


@pytest.mark.parametrize(("schema", "place"), NOT_KEPT, ids=lambda each: json.dumps(each)[:40])
def test_what_cannot_be_kept_is_refused_by_its_pointer(schema, place):
    with pytest.raises(UserError, match=re.escape(f"at {place}: ")) as caught:
        plain_schema(schema)
    assert "\n" not in str(caught.value)


def test_no_value_of_a_keyword_breaks_the_pass():
    numbers = (0, -1, 1.5, 1e300, 10**30)
    texts = ("", "x", "#", "#/x", "(")
    others = (None, True, [], [1], [{}], [[]], [None], {}, {"a": 1}, {"a": []}, {"$ref": "#"}, {"(": {}})
    for name in KEYWORDS:
        for value in (*numbers, *texts, *others):
            for schema in ({name: value}, {"$defs": {"a": {name: value}}, "$ref": "#/$defs/a"}):
                with suppress(UserError):
                    plain_schema(schema)


def test_deep_schemas_are_refused():
    deep = "{" + '"items":{' * 300 + "}" * 301
    with pytest.raises(UserError, match="nested too deeply"):
        grammar_of_schema(deep)


HELD = [
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, lambda x: -(2**63) <= x < 2**63),
    ({"enum": [0.1, 2**53, -7, 1e-7]}, lambda x: x in (0.1, 2**53, -7, 1e-7)),
    ({"type": "number", "minimum": -0.5, "maximum": 1e300}, lambda x: x >= -0.5),
    (
        {"propertyNames": {"pattern": "^a+$"}, "additionalProperties": S, "type": "object"},
        lambda x: all(set(k) == {"a"} for k in x),
    ),
    (
        {"items": [S], "additionalItems": False, "type": "array"},
        lambda x: len(x) < 2 and all(isinstance(e, str) for e in x),
    ),
]


@pytest.mark.parametrize(("schema", "holds"), HELD)
def test_answers_of_a_form_have_it(schema, holds):
    grammar = grammar_of_schema(json.dumps(schema))
    found = [text for seed in range(8) if (text := walk(grammar, seed)) is not None]
    assert len(found) > 1
    assert all(holds(json.loads(text)) for text in found)


def test_no_form_ends_this_process(request):
    """Each is used, or refused in one line."""
    found, draw = load_checkpoint("default"), random.Random(1)
    grammars = Grammars(found.tokenizer, found.config.vocab_size, timeout_s=0.05)
    said = []
    for _ in range(400 if request.config.getoption("--full") else 30):
        try:
            grammars.processor(StructuredOutputs(**hostile_form(draw)))
        except UserError as error:
            said.append(str(error))
    assert said and not any("\n" in each for each in said)
