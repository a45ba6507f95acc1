"""What limits an answer is obeyed or refused, in every API; what is only unknown is not minded."""

import itertools
import json

import pytest
from tests.helpers.scripted_client import HI

ROUTES = {
    "/completions": {"prompt": [5, 6]},
    "/chat/completions": {"messages": HI},
    "/responses": {"input": "Hi"},
    "/messages": {"messages": HI, "max_tokens": 9},
}
SCHEMA = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}


@pytest.mark.parametrize("path", ROUTES)
def test_a_schema_is_obeyed_wherever_it_is(server, path):
    places = [
        {"json_schema": SCHEMA},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    ]
    if path == "/responses":
        places.append({"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}})
        places.append({"text": {"format": {"type": "json_object", "schema": SCHEMA}}})
    if path == "/messages":
        form = {"type": "json_schema", "schema": SCHEMA}
        places += [{"output_format": form}, {"output_config": {"format": form, "effort": "low"}}]
    for place in places:
        assert server.refused(path, **ROUTES[path], **place).status_code == 200
        assert json.loads(server.engine.asked[-1].structured_outputs.json) == SCHEMA, place
    for first, second in itertools.combinations([*places, {"guided_regex": "a"}], 2):
        if not first.keys() & second.keys():
            is_same = "guided_regex" not in second
            asked = server.refused(path, **ROUTES[path], **first, **second)
            assert (asked.status_code == 200) == is_same, (first, second)
            other = json.loads(json.dumps(second).replace('"a"', '"b"', 1))
            both = server.refused(path, **ROUTES[path], **first, **other)
            assert both.status_code == 400 and "one form, and you sent 2" in both.text, (first, other)
            assert all(next(iter(each)) in both.text for each in (first, other))
    for wrong in ({"type": "json_object", "schema": "x"}, {"type": "json_schema", "json_schema": {}}):
        refused = server.refused(path, **ROUTES[path], response_format=wrong)
        assert refused.status_code == 400 and "response_format." in refused.text
