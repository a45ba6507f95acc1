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


def todo_of(tmp_path, call, more="", body="return tokens"):
    (tmp_path / "sums.py").write_text(WRITTEN.format(more=more, body=body))
    names = {}
    exec((tmp_path / "sums.py").read_text(), names)
    with pytest.raises(Exception) as caught:
        exec(call, names)
    todo = find_missing(caught.value, GROWN, tmp_path, tmp_path)
    return None if todo is None else str(todo)


@pytest.mark.parametrize(
    ("call", "more", "says"),
    [
        ("Model()(1, cache=2)", "", CACHE),
        ("Model()(1, 2, 3)", "", CACHE),
        ("Model()(1, rows=3)", "", ROWS),
        ("Model()(1, 2, 3, 4)", ", cache=0", ROWS),
    ],
)
def test_a_parameter_that_a_task_adds_is_to_be_written(tmp_path, call, more, says):
    assert todo_of(tmp_path, call, more) == says


def test_a_function_comes_before_what_is_added_to_it(tmp_path):
    assert todo_of(tmp_path, "pick(1, ops=2)") == "TODO 1.7.1: write sums.py:7 pick"


@pytest.mark.parametrize(
    ("call", "more", "body"),
    [
        ("Model()(1, row=3)", "", "return tokens"),  # no task adds it
        ("Model()(1, offset=3, offsets=4)", "", "return tokens"),
        ("Model()(1, 2, 3, 4, 5)", ", cache=0, rows=0", "return tokens"),  # all are there
        ("Model()(1, [2])", "", "return tokens + offset"),  # more types are no parameter
        ("Model()()", "", "return tokens"),
        ("Model()(1)", "", "return len(tokens=1)"),
        ("Model()(1)", "", ANOTHER),
    ],
)
def test_any_other_error_is_the_learners(tmp_path, call, more, body):
    assert todo_of(tmp_path, call, more, body) is None


def test_an_error_behind_another_is_found(tmp_path):
    lines = ("try:", "    pick(1, ops=2)", "except TypeError as error:", "    raise KeyError from error")
    body = "\n        ".join(lines)
    assert todo_of(tmp_path, "Model()(1)", body=body) == "TODO 1.7.1: write sums.py:10 pick"
