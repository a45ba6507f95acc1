"""A parameter that a later task adds: a call that finds it missing is TODO, any other TypeError is not."""

import pytest

from tiny_llm_lab.course.exercises import Growth, find_missing

GROWN = [
    Growth("2.1.2", "Model.__call__", "cache"),
    Growth("2.6.1", "Model.__call__", "offset", before="int"),
    Growth("3.2.2", "Model.__call__", "rows"),
    Growth("2.5.6", "pick", "ops"),
]
WRITTEN = """
class Model:
    def __call__(self, tokens, offset=0{more}):
        {body}

def pick(logits, top_k=0):
    raise NotImplementedError("task 1.7.1")
"""
CACHE = "TODO 2.1.2: write the parameter `cache` of sums.py:3 Model.__call__"
ROWS = "TODO 3.2.2: write the parameter `rows` of sums.py:3 Model.__call__"
ANOTHER = "raise ValueError(\"Model.__call__() got an unexpected keyword argument 'rows'\")"


def todo_of(tmp_path, call, more, body):
    (tmp_path / "sums.py").write_text(WRITTEN.format(more=more, body=body))
    names = {}
    exec((tmp_path / "sums.py").read_text(), names)
    with pytest.raises(Exception) as caught:
        exec(call, names)
    todo = find_missing(caught.value, GROWN, tmp_path, tmp_path)
    return None if todo is None else str(todo)


@pytest.mark.parametrize(
    ("call", "more", "body", "says"),
    [
        ("Model()(1, cache=2)", "", "return tokens", CACHE),
        ("Model()(1, 2, 3)", "", "return tokens", CACHE),
        ("Model()(1, rows=3)", "", "return tokens", ROWS),
        ("Model()(1, 2, 3, 4)", ", cache=0", "return tokens", ROWS),
        (
            "pick(1, ops=2)",
            "",
            "return tokens",
            "TODO 1.7.1: write sums.py:7 pick",
        ),  # the function comes first
        # Any other error is the learner's.
        ("Model()(1, row=3)", "", "return tokens", None),  # no task adds it
        ("Model()(1, offset=3, offsets=4)", "", "return tokens", None),
        ("Model()(1, 2, 3, 4, 5)", ", cache=0, rows=0", "return tokens", None),  # all are there
        ("Model()(1, [2])", "", "return tokens + offset", None),  # more types are no parameter
        ("Model()()", "", "return tokens", None),
        ("Model()(1)", "", "return len(tokens=1)", None),
        ("Model()(1)", "", ANOTHER, None),
    ],
)
def test_a_parameter_that_a_task_adds_is_to_be_written(tmp_path, call, more, body, says):
    assert todo_of(tmp_path, call, more, body) == says


def test_an_error_behind_another_is_found(tmp_path):
    lines = ("try:", "    pick(1, ops=2)", "except TypeError as error:", "    raise KeyError from error")
    body = "\n        ".join(lines)
    assert todo_of(tmp_path, "Model()(1)", "", body) == "TODO 1.7.1: write sums.py:10 pick"
