"""The arguments of a call in Qwen3-Coder's tags: their schemas say what the text is."""

import json
import random

import pytest
from tests.helpers.json_values import made

from tiny_llm_lab.serving.server.chat.answer_parser import ToolCallParser

TEXT = {"type": "string"}
NULLABLE = {"oneOf": [TEXT, {"type": "null"}]}


def arguments_of(pieces, schema):
    parser = ToolCallParser({"f": schema})
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    return "".join(each.text for each in parts if each.kind == "arguments")


def value_of(text, schema, root=None):
    """What a parameter of `schema` becomes whose text is `text`; {} as the root is that of the function."""
    parameters = {"properties": {"a": schema}, **(root or {})}
    call = f"<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>"
    return json.loads(arguments_of([call], parameters))["a"]


PARAMETERS = [
    (NULLABLE, "2024", "2024"),
    (NULLABLE, '{"a": 1}', '{"a": 1}'),
    (NULLABLE, "null", None),
    (NULLABLE, "None", None),
    (TEXT, "null", "null"),
    ({"type": ["string", "null"]}, "007", "007"),
    ({"enum": ["auto", 5]}, "5", 5),
    ({"$ref": "#/$defs/name"}, "1", "1"),
    ({"$ref": "#/$defs/x~1y"}, "1", "1"),
    ({"allOf": [{"$ref": "#/$defs/name"}], "description": "d"}, "1", "1"),
    ({"$ref": "#/$defs/circle"}, "1", "1"),
    ({"type": "boolean"}, "True", True),
    ({"type": "array"}, "['a', \"b\", None]", ["a", "b", None]),
    ({"type": "object"}, "{'a': (1, True)}", {"a": [1, True]}),
    ({"type": "integer", "enum": [1, 2]}, " 2 ", 2),
    ({"type": "array"}, "{1, 2}", "{1, 2}"),
    ({"type": "array"}, "[" * 50_000, "[" * 50_000),
    ({}, "3", 3),
    ({"anyOf": [{}, TEXT]}, "3", 3),
    ({"anyOf": [{}, {"type": "integer"}]}, "True", "True"),
    (None, "True", "True"),
]


@pytest.mark.parametrize(("schema", "text", "value"), PARAMETERS)
def test_what_a_parameter_is(schema, text, value):
    circle = {"anyOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/name"}]}
    found = value_of(text, schema, {"$defs": {"name": TEXT, "circle": circle, "x/y": TEXT}})
    assert (type(found), found) == (type(value), value)


def test_parameters_behind_a_reference():
    assert value_of("1", {}, {"properties": 1}) == 1
    root = {"$ref": "#/$defs/Args", "$defs": {"Args": {"properties": {"a": TEXT}}}}
    assert arguments_of(["<function=f><parameter=a>1</parameter></function>"], root) == '{"a": "1"}'


ODD = (None, 5, [[]], {}, {"type": 5}, {"a": {"anyOf": 3}}, [{}], {"$ref": "#/properties/a"})


@pytest.mark.parametrize("name", ["type", "anyOf", "allOf", "enum", "const", "$ref", "properties", "$defs"])
@pytest.mark.parametrize("odd", ODD)
def test_odd_schemas_raise_nothing(name, odd):
    value_of("1", {name: odd})
    value_of("1", {"$ref": "#/$defs/a/b"}, {name: odd})
    deep = {name: odd}
    for _ in range(2000):
        deep = {"anyOf": [deep]}
    value_of("1", deep)
    wide = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{j}"} for j in range(50)]} for i in range(50)}
    assert value_of("1", {"$ref": "#/$defs/d0"}, {"$defs": wide}) == "1", "every reference is followed once"


def schema_of(value, rng):
    """A schema that says the type of `value`, in one of the ways in which schemas do."""
    names = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
    kind, other = names.get(type(value), "null"), rng.choice(("null", "boolean"))
    union = {"anyOf": [{"type": other}, {"type": kind}]}
    return rng.choice(({"type": kind}, union, {"type": [kind, other]}, {"enum": [value]}))


def as_qwen_writes(value):
    """What the template of Qwen3-Coder makes of an argument: JSON of lists and objects, else Python's str."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


@pytest.mark.parametrize("seed", range(300))
def test_what_the_template_writes_is_read_again(seed):
    rng = random.Random(seed)
    value = made(rng)
    schema = schema_of(value, rng)
    root = {"$defs": {"it": schema}}
    if rng.random() < 0.5:
        schema = {"$ref": "#/$defs/it"}
    found = value_of(as_qwen_writes(value), schema, root)
    assert (type(found), found) == (type(value), value), schema


@pytest.mark.parametrize("value", ["null", "None", " null \n", "nullx", "", "n", "null" + " " * 99, "  x"])
def test_a_text_that_may_be_null(value):
    parameters = {"properties": {"a": NULLABLE}}
    call = f"<function=f><parameter=a>\n{value}\n</parameter></function>"
    (found,) = {arguments_of(pieces, parameters) for pieces in ((call,), tuple(call))}
    is_null = value.strip() in ("null", "None") and len(value) < 9
    assert json.loads(found) == {"a": None if is_null else value}
