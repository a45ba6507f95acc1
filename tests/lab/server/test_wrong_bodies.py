"""Wrong values in every field: an error that names its cause or an answer, and always JSON."""

import json
import re
from collections import Counter
from itertools import islice

import pytest
from tests.helpers.wrong_bodies import is_well_formed, wrong_bodies

from tiny_llm_lab.runtime.pictures.contents import Contents
from tiny_llm_lab.serving.server.api import ApiError
from tiny_llm_lab.serving.server.schemas.chat import ChatMessage
from tiny_llm_lab.serving.server.schemas.messages import CountRequest
from tiny_llm_lab.serving.server.schemas.responses import ResponsesRequest
from tiny_llm_lab.serving.server.schemas.tools import Function

EVERY = 11  # of the bodies: has no factor in common with the number of values, so each value comes


# How pydantic, json, jinja2, h11, httptools, starlette, FastAPI and Python begin their sentences.
FOREIGN = re.compile(
    r"^((\S+: )?(Input should|Field required|Value error|Assertion|Extra inputs"
    r"|[A-Z]\w+ should (be|match|have))"
    r"|Expecting|Extra data|Invalid (control|HTTP|header)|Unterminated|There was an error|Not Found|Method N"
    r"|Internal Server|Exceeded|Object of type|Out of range|Circular|maximum recursion|Illegal|unhashable"
    r"|'.*' (is undefined|object)|Can only|expected|Encountered|Unexpected|Missing end|'.*' codec)"
)


def foreign_words(answer):
    """The message of an error, if it is a sentence of a library that we use."""
    if answer.status_code < 400:
        return set()
    message = answer.json()["error"]["message"]
    return {message} if FOREIGN.match(message) else set()


# Two fields are to blame, or the template, which says no more.
NOT_ONE = "tool_choice names|(the|This) model's (chat|max)|a message or a tool has"


def test_wrong_values_of_every_field(server):
    server.engine.script = ""
    statuses, foreign, headers = Counter(), set(), {"Content-Type": "application/json"}
    for path, body, place in islice(wrong_bodies(), 0, None, EVERY):
        answer = server.site.post(path, content=json.dumps(body), headers=headers)
        assert is_well_formed(answer), (path, place, answer.text[:300])
        statuses[answer.status_code] += 1
        foreign |= foreign_words(answer)
        if answer.status_code == 400:
            error, changed = answer.json()["error"], place.split(".")[0]
            blamed = re.split(r"[.\[]", error["param"] or "")[0]
            assert blamed == changed or re.match(NOT_ONE, error["message"]), (path, place, error)
    assert set(statuses) <= {200, 400, 404} and statuses[400] > 400 and foreign == set()
    assert '"param":"guided_regex"' in server.refused("/completions", prompt="x", guided_regex="(").text


REPEATED = ("metadata", "text", "tool_choice")
FUNCTION = {"name": "f", "parameters": {"a": ["number"]}}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "number"}}}]}
USE = {"role": "assistant", "content": [{"type": "tool_use", "input": {"a": "number"}}]}


NO_JSON = [
    *((ResponsesRequest.model_validate, {"input": "x", field: {"a": ["number"]}}) for field in REPEATED),
    (Function.model_validate, FUNCTION),
    (ChatMessage.model_validate, CALL),
    (lambda body: CountRequest.model_validate(body).turns(Contents()), {"messages": [USE]}),
]


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(("read", "body"), NO_JSON)
def test_neither_answer_nor_prompt_repeats_a_number_that_json_does_not_have(read, body, number):
    read(json.loads(json.dumps(body).replace('"number"', "1e99")))
    with pytest.raises((ValueError, ApiError), match="NaN or an infinite number"):
        read(json.loads(json.dumps(body).replace('"number"', number)))
