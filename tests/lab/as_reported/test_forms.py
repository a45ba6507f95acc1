"""A form says what the schema says, or is refused by name."""

import pytest
from tests.lab.as_reported.report import Report

SDK = ("password", "binary", "path", "byte", "uri-reference", "json-pointer", "regex")
ID_TOOL = {
    "$id": "https://e.org/s",
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/s"}},
    "required": ["a"],
    "$defs": {"s": {"enum": [7]}},
}


def form(source, symptom, schema, right):
    body = {"prompt": "x", "max_tokens": 40, "structured_outputs": {"json": schema}}
    return Report(source, symptom, "/v1/completions", body, right)


def refused(source, symptom, schema, word):
    return form(source, symptom, schema, {"status": 400, "error.message~": word})


def called(source, symptom, parameters, right):
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 60,
        "tools": [{"type": "function", "function": {"name": n, "parameters": parameters}} for n in "fg"],
        "tool_choice": "required",
    }
    return Report(source, symptom, "/v1/chat/completions", body, right)


TAKEN = {"status": 200}
REPORTS = [
    form("llguidance 2^53", "the largest exact integer", {"const": 2**53}, {"choices.0.text": str(2**53)}),
    form("numbers", "a decimal is as written", {"enum": [0.1]}, {"choices.0.text": "0.1"}),
    form("numbers", "a whole decimal", {"const": 3.0}, {"choices.0.text": "3"}),
    refused("numbers", "a bound of 400 digits", {"type": "integer", "minimum": 10**400}, "/minimum"),
    refused("numbers", "one below zero", {"exclusiveMaximum": -(10**400)}, "/exclusiveMaximum"),
    form("numbers", "one that bars nothing", {"enum": [3], "maximum": 10**400}, {"choices.0.text": "3"}),
    form("numbers", "one below", {"enum": [3], "exclusiveMinimum": -(10**400)}, {"choices.0.text": "3"}),
    Report(
        "F8",
        "counts within counts stop every step",
        "/v1/completions",
        {"prompt": "x", "structured_outputs": {"regex": "(a{500}){500}"}},
        {"status": 400, "error.param": "structured_outputs"},
    ),
    refused("C1", "INT64_MIN ends the engine", {"const": -(2**63)}, "/const"),
    refused(
        "C1",
        "within a property",
        {"type": "object", "properties": {"a": {"enum": [-(2**63)]}}},
        "/properties/a/enum",
    ),
    refused("C3", "a large multipleOf", {"type": "integer", "multipleOf": 2**40}, "/multipleOf"),
    *(
        form("A7", f"format {each}", {"type": "string", "format": each, "maxLength": 3}, TAKEN)
        for each in SDK
    ),
    form("A7", "keywords of other tools", {"type": "boolean", "x-order": 1, "nullable": False}, TAKEN),
    form("A9", "int64's smallest", {"type": "integer", "minimum": -(2**63)}, TAKEN),
    form("A9", "int64", {"type": "integer", "minimum": -(2**63) + 1, "maximum": 2**63 - 1}, TAKEN),
    form("A9", "uint64", {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, TAKEN),
    form("A9", "a double's range", {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308}, TAKEN),
    refused("A9", "above int64", {"type": "integer", "minimum": 10**20}, "/minimum"),
    refused("M3", "a lookahead", {"properties": {"a": {"pattern": "^(?!a)b"}}}, "/properties/a/pattern"),
    refused("M3", "in a name", {"patternProperties": {"a/~(?=b)": {}}}, "/patternProperties/a~1~0(?=b)"),
    refused("M3", "oneOf of open objects", {"oneOf": [{"type": "object"}, {"required": ["a"]}]}, "/oneOf"),
    refused("M3", "an open group", {"pattern": "(a"}, "/pattern"),
    refused("R17", "uniqueItems", {"items": {"uniqueItems": True}}, "/items/uniqueItems"),
    refused("R64", "not", {"not": {"type": "string"}}, "/not"),
    form("R64", "not of everything", {"anyOf": [{"not": {}}, {"const": 1}]}, {"choices.0.text": "1"}),
    form(
        "R65",
        "names of a record",
        {"propertyNames": {"type": "string"}, "const": {}},
        {"choices.0.text": "{}"},
    ),
    refused("F8", "nothing can match", {"allOf": [{"const": 1}, {"const": 2}]}, "no text can match"),
    called("A5", "a root with $id", ID_TOOL, {"choices.0.message.tool_calls.0.function.arguments~": "7"}),
    called(
        "A5",
        "an anchor",
        {
            **ID_TOOL,
            "$id": "x",
            "properties": {"a": {"$ref": "#s"}},
            "$defs": {"t": {"$anchor": "s", "const": 8}},
        },
        {"choices.0.message.tool_calls.0.function.arguments~": "8"},
    ),
    called(
        "A5",
        "$id below the root",
        {**ID_TOOL, "$defs": {"s": {"$id": "t", "$ref": "#/$defs/u", "$defs": {"u": {"const": 9}}}}},
        {"choices.0.message.tool_calls.0.function.arguments~": "9"},
    ),
    called(
        "C1",
        "in a tool's parameters",
        {"properties": {"a": {"const": -(2**63)}}},
        {"status": 400, "error.message~": "/properties/a/const"},
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.id)
def test_a_form_as_reported(report, on_shipped_model):
    on_shipped_model(report)
