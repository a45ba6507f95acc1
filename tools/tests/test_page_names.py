"""Names and messages that pages quote: a class has the member, and the code has the words."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.name: path.read_text("utf-8") for path in sorted((ROOT / "book" / "src").glob("*.md"))}
SOURCES = [path for part in ("ref", "lab") for path in (ROOT / "src" / f"tiny_llm_{part}").rglob("*.py")]
# A variable is taken to be of the class of its name; these are C++ or JSON, or no class's.
NO_CLASS = {"usage", "rows", "sizes", "model", "report", "result"}
MEMBER = re.compile(r"`([A-Za-z_]\w*)\.([A-Za-z_]\w*)[^`\s]*`")
MESSAGE = re.compile(r"^\| (?:.* or )?`([^`]+)`[^|]*\|", re.MULTILINE)


def classes():
    """The members of each class, with those of its bases."""
    own, bases = defaultdict(set), defaultdict(set)
    for tree in (ast.parse(path.read_text("utf-8")) for path in SOURCES):
        for node in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
            bases[node.name] |= {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
            text = ast.unparse(node)
            own[node.name] |= set(re.findall(r"(?:def |self\.)(\w+)", text))
            own[node.name] |= set(re.findall(r"^ {4}(\w+)(?::| =)", text, re.MULTILINE))

    def members(name):
        return own[name].union(*(members(base) for base in bases[name] - {name}))

    return {name: members(name) for name in list(own)}


CLASSES = classes()
VARIABLES = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): name for name in CLASSES}


def unknown(text):
    """What the prose names as a member of a class that has none of that name."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for owner, member in MEMBER.findall(prose):
        name = owner if owner in CLASSES else VARIABLES.get(owner)
        if name and owner not in NO_CLASS and member not in CLASSES[name]:
            yield f"{owner}.{member}"


@pytest.mark.parametrize(
    "page", sorted(PAGES.keys() - {"to-vllm-and-sglang.md"})
)  # it has names of other engines
def test_a_page_names_members_that_exist(page):
    assert list(unknown(PAGES[page])) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`request.max_draft_tokens` and `request.answer.max_draft_tokens`", ["request.max_draft_tokens"]),
        (
            "`Scheduler.schedule()`, `Scheduler.plan`, `BlockPool.no_such`",
            ["Scheduler.plan", "BlockPool.no_such"],
        ),
        ("`mx.exp`, `numbers.any`", []),
    ],
)
def test_a_member_that_no_class_has_is_found(text, found):
    assert list(unknown(text)) == found


@pytest.mark.parametrize("page", ["setup.md", "on-a-mac.md"])
def test_the_messages_of_a_table_of_troubles_are_in_the_code(page):
    table = PAGES[page].partition("## When something is wrong")[2].partition("\n## ")[0]
    code = " ".join(path.read_text("utf-8") for path in (*SOURCES, ROOT / "pdmw"))
    messages = [each for each in MESSAGE.findall(table) if " " in each]
    assert messages
    for message in messages:
        # What a message names differs from run to run; its other words do not.
        parts = [each.strip(" :;") for each in re.split(r"'\w+'|^\w+: ", message)]
        assert [part for part in parts if part and part not in code] == []
