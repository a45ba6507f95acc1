"""The step of `check` that counts turns of phrase, on pages that have some."""

import pytest

from tools.checking.prose import complaints, num_words, turns

PATTERNS = {
    "stands": r"\bstands?\b",
    "that of": r"\bthat of\b",
    "inversion": r"(?m:^)(?-i:Were) (?:it|the)\b",
}
PAGE = """The pool stands there, as `stands` does. Its size is that of a block, [that of](that-of.md).
```text
it stands
```
<!-- stands -->
Were it not so, it stands. They were the first.
"""


def pages(root, budget, text=PAGE, words=100):
    table = "".join(f"{name!r} = {pattern!r}\n" for name, pattern in PATTERNS.items())
    (root / "prose.toml").write_text(
        f'pages = ["*.md"]\n[turns]\n{table}[words]\n"a*.md" = {words}\n[budget]\n{budget}\n'.replace(
            "\\\\", "\\"
        )
    )
    (root / "a.md").write_text(text)
    return list(complaints(root))


def test_code_links_and_comments_are_no_prose():
    assert turns(PAGE, PATTERNS) == {"stands": 2, "that of": 2, "inversion": 1}


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ('"a.md" = 5', []),
        (
            '"a.md" = 4',
            ["a.md: 5 turns that docs/style.md rewrites, budget 4: stands 2, that of 2, inversion 1"],
        ),
        ("", ["a.md: 5 turns that docs/style.md rewrites, budget 0: stands 2, that of 2, inversion 1"]),
        ('"a.md" = 6', ["a.md: 5 turns, budget 6: lower it in prose.toml"]),
        ('"a.md" = 5\n"b.md" = 1', ["b.md does not exist: remove it from prose.toml"]),
    ],
)
def test_a_budget_only_falls(tmp_path, budget, says):
    assert pages(tmp_path, budget) == says


LONG = """# A heading

Don't count 1,024 [links](to-a-page.md) as `two words`. <!-- four words of comment -->

<details><summary>Answer</summary>

It's six.
</details>

<!-- hours: 2.7 -->

*About 6 hours: 183 lines to write.*
<!-- end of hours -->

| a table | has none |
|---|---|

$$a + b$$

```text
nor has code
```
"""


def test_words_are_those_of_sentences():
    assert num_words(LONG) == 12


@pytest.mark.parametrize(
    ("most", "says"),
    [(12, []), (11, ["a.md: 12 words, at most 11: shorten it, or give a part its own page"])],
)
def test_a_page_has_no_more_words_than_it_may(tmp_path, most, says):
    (tmp_path / "b.md").write_text(LONG)
    assert pages(tmp_path, "", LONG, most) == says
