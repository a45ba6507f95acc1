"""Code is found by symbol and tree, and replaced where it is."""

import ast

import pytest

from tiny_llm_lab.course.code_tree import CodeTree, Edit

SOURCE = '''
LIMIT = 3


def total(rows, name="é"):
    """Add them."""
    if not rows:
        return 0
    elif len(rows) > LIMIT:
        return -1
    print(f"{name}: {len(rows)}", sum(row for row in rows))
    return sum(
        rows,  # all of them
        (0),
    )


class Counter:
    def step(self):
        self.n += 1
        for _ in range(2):
            self.n += 1

    @property
    def twice(self):
        return self.n * 2
'''
LOOP = "for _ in range(2):\n    self.n += 1"
INNER_LOOP = LOOP.replace("\n", "\n        ")
CASE = "if len(rows) > LIMIT: return -1"
ELIF = "elif len(rows) > LIMIT:\n        return -1"


def edited(symbol: str, find: str, swap: str) -> str:
    edit = Edit(symbol, find, swap)
    [place] = edit.places(SOURCE)
    return edit.made_at(SOURCE, place)


@pytest.mark.parametrize("find", ["sum(rows, 0)", "sum(\n  rows,\n (0), )  # of all", "return sum(rows,0)"])
def test_layout_makes_no_difference(find: str) -> None:
    swap = "return rows[0]" if "return" in find else "rows[0]"
    assert ast.unparse(ast.parse(edited("total", find, swap))).count("return rows[0]") == 1


@pytest.mark.parametrize(
    ("symbol", "find", "count"),
    [
        ("Counter.step", "self.n += 1", 2),
        ("Counter", "self.n += 1", 2),
        ("total", "self.n += 1", 0),
        ("total", "len(rows)", 1),  # not the one in the f-string
        ("total", "'é'", 1),
        ("", "LIMIT", 2),
        ("total", "LIMIT", 1),
        ("missing", "LIMIT", 0),
        ("Counter.twice", "@property\ndef twice(self): return self.n * 2", 1),
    ],
)
def test_it_is_looked_for_in_its_symbol(symbol: str, find: str, count: int) -> None:
    assert len(Edit(symbol, find, "pass").places(SOURCE) or Edit(symbol, find, "0").places(SOURCE)) == count


@pytest.mark.parametrize(
    ("symbol", "find", "swap", "right", "wrong"),
    [
        ("Counter.twice", "self.n", "self.n + 1", "self.n * 2", "(self.n + 1) * 2"),
        ("total", "(row for row in rows)", "[1]", "sum(row for row in rows)", "sum([1])"),
        ("total", "return -1", "", "return -1", "pass"),
        ("Counter.step", LOOP, "", INNER_LOOP, ""),
        ("Counter.step", LOOP, "while True:\n  pass", INNER_LOOP, "while True:\n            pass"),
        ("total", CASE, "", ELIF, ""),
        ("total", CASE, "rows = []", ELIF, "else:\n        rows = []"),
    ],
)
def test_the_rest_stays(symbol: str, find: str, swap: str, right: str, wrong: str) -> None:
    wanted = ast.parse(SOURCE.replace(right, wrong))
    assert ast.dump(ast.parse(edited(symbol, find, swap))) == ast.dump(wanted)


def test_what_is_no_code_is_refused() -> None:
    with pytest.raises(SyntaxError):
        Edit("", "a +", "b")


def test_inner_symbols_come_first() -> None:
    assert list(CodeTree(SOURCE).names()) == ["total", "Counter.step", "Counter.twice", "Counter", ""]
