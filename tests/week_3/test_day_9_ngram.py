"""Day 3.9: drafts that are looked up."""

import random

import pytest

from tiny_llm_lab.types import UserError

pytestmark = pytest.mark.task("3.9.1")


@pytest.mark.parametrize(
    ("text", "settings", "want"),
    [
        ("the cat sat. the c", {}, "at s"),
        ("abcd xbcd yd", {"max_ngram": 3}, " "),  # only "d" is known: one token, from its last place
        ("abcd xbcd ycd", {"max_ngram": 3}, " ycd"),  # "cd" is known; its last place has 4 tokens behind it
        ("abcX bcY c.. abc", {}, "X bc"),  # the longest n-gram counts, not the most recent shorter one
        ("abcX abcY abcZ abc", {}, "Z ab"),  # of equally long ones the most recent
        ("abcX bcY c.. abc", {"max_ngram": 1}, "."),
        ("xxabc yyabc", {"max_ngram": 5, "min_ngram": 3}, " yya"),
        ("xbc yabc", {"min_ngram": 3}, ""),  # two tokens agree, and three are asked for
        ("aaaaa", {}, "a"),  # the earlier occurrence overlaps with the end
        ("abc", {}, ""),
        ("", {}, ""),
    ],
)
def test_ngram_drafts(llm, text, settings, want):
    draft = llm.NgramProposer(**settings).look_up(list(text.encode()))
    assert bytes(draft.token_ids).decode() == want
    assert draft.probs is None


def looked_up(tokens, max_ngram, min_ngram, num_tokens):
    """What the docstring says, word by word."""
    ends = [i + 1 for i in range(len(tokens) - 1) if tokens[i] == tokens[-1]][-256:]
    for n in range(max_ngram, min_ngram - 1, -1):
        found = [end for end in ends if end >= n and tokens[end - n : end] == tokens[len(tokens) - n :]]
        if found:
            return tuple(tokens[found[-1] :][: num_tokens if n > 1 else 1])
    return ()


@pytest.mark.parametrize("letters", [1, 2, 3, 8, 200])
@pytest.mark.parametrize(("longest", "shortest"), [(1, 1), (3, 1), (4, 2), (6, 6)])
def test_ngram_drafts_while_texts_grow(llm, letters, longest, shortest):
    rng = random.Random(letters)
    proposer = llm.NgramProposer(longest, shortest, 3)
    texts = {"one": [], "two": []}
    for _ in range(60):
        for name, tokens in texts.items():
            tokens += rng.choices(range(letters), k=rng.randint(1, 3))
            want = looked_up(tokens, longest, shortest, 3)
            assert tuple(proposer.look_up(tokens).token_ids) == want, tokens
            assert tuple(proposer.look_up(tokens, name).token_ids) == want, (name, tokens)


@pytest.mark.parametrize("name", [None, "a"])
@pytest.mark.parametrize(("num_after", "want"), [(255, (3, 9, 2, 9)), (256, (1,))])
def test_ngram_looks_at_the_most_recent_places(llm, name, num_after, want):
    """The last token, 2, is behind a 1 once: that is the 256th or the 257th of its places."""
    proposer, text = llm.NgramProposer(), [1, 2, 3, *[9, 2] * num_after, 1, 2]
    assert proposer.look_up(text, name).token_ids == want, "256 of the earlier places count"


def test_ngram_forgets_a_request(llm):
    proposer = llm.NgramProposer()
    assert proposer.look_up([1, 2, 3, 1, 2], "a").token_ids == (3, 1, 2)
    proposer.forget("a")
    proposer.forget("never seen")
    assert proposer.look_up([7, 8, 9, 7, 8], "a").token_ids == (9, 7, 8)


@pytest.mark.parametrize(
    "settings", [{"min_ngram": 0}, {"max_ngram": 2, "min_ngram": 3}, {"num_tokens": 0}, {"max_ngram": 0}]
)
def test_ngram_rejects_bad_settings(llm, settings):
    with pytest.raises(UserError):
        llm.NgramProposer(**settings)
