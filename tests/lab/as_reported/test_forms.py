"""A form says what the schema says; what is refused is in tests/golden/requests.jsonl."""

import pytest
from tests.lab.as_reported.report import Report

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


def called(symptom, parameters, has):
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 60,
        "tools": [{"type": "function", "function": {"name": n, "parameters": parameters}} for n in "fg"],
        "tool_choice": "required",
    }
    right = {"choices.0.message.tool_calls.0.function.arguments~": has}
    return Report("A5", symptom, "/v1/chat/completions", body, right)


REPORTS = [
    form("llguidance 2^53", "the largest exact integer", {"const": 2**53}, {"choices.0.text": str(2**53)}),
    form("numbers", "a decimal is as written", {"enum": [0.1]}, {"choices.0.text": "0.1"}),
    form("numbers", "a whole decimal", {"const": 3.0}, {"choices.0.text": "3"}),
    form("numbers", "one that bars nothing", {"enum": [3], "maximum": 10**400}, {"choices.0.text": "3"}),
    form("numbers", "one below", {"enum": [3], "exclusiveMinimum": -(10**400)}, {"choices.0.text": "3"}),
    form("R64", "not of everything", {"anyOf": [{"not": {}}, {"const": 1}]}, {"choices.0.text": "1"}),
    form("R65", "a record", {"propertyNames": {"type": "string"}, "const": {}}, {"choices.0.text": "{}"}),
    called("a root with $id", ID_TOOL, "7"),
    called(
        "an anchor",
        {
            **ID_TOOL,
            "$id": "x",
            "properties": {"a": {"$ref": "#s"}},
            "$defs": {"t": {"$anchor": "s", "const": 8}},
        },
        "8",
    ),
    called(
        "$id below the root",
        {**ID_TOOL, "$defs": {"s": {"$id": "t", "$ref": "#/$defs/u", "$defs": {"u": {"const": 9}}}}},
        "9",
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.id)
def test_a_form_as_reported(report, on_shipped_model):
    on_shipped_model(report)
