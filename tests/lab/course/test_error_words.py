"""What a task's tests look for in an error, a learner can read in a docstring or in the book."""

import ast
import re

from tiny_llm_lab.course.manifest import load_course

ROOT = load_course().root
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


def readable():
    """The docstrings of the contract and all pages of the book, on one line."""
    texts = [page.read_text() for page in (ROOT / "book/src").glob("*.md")]
    for folder in ("src/tiny_llm_ref", "src/tiny_llm_lab/types"):
        for path in (ROOT / folder).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text()))
            texts += [ast.get_docstring(node) or "" for node in nodes if isinstance(node, DOCUMENTED)]
    return " ".join(" ".join(texts).split())


def words_demanded(path):
    """Each literal part of a pattern that `pytest.raises` matches, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises":
            for pattern in (each.value for each in node.keywords if each.arg == "match"):
                for part in ast.walk(pattern):
                    if isinstance(part, ast.Constant):
                        for words in re.split(r"\.\*|\|", part.value):
                            yield node.lineno, re.sub(r"\\(.)", r"\1", words).strip()


def test_no_test_demands_words_that_are_written_nowhere_else():
    text = readable()
    demanded = {
        (path.name, line): words
        for path in sorted((ROOT / "tests").glob("week_*/*.py"))
        for line, words in words_demanded(path)
    }
    assert len(demanded) > 5, "the scan finds them"
    assert {where: words for where, words in demanded.items() if words not in text} == {}
