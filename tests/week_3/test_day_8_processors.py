"""Day 3.8: what changes the logits of a request sees each row of a draft with the answer before it."""

from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.serving import make_engine
from tests.week_3.test_day_6_processors import CHANGED, LONG, Odd, alone, asked, check_company, model, wanted

from tiny_llm_lab.types import Prompt

pytestmark = pytest.mark.task("3.8.6")
__all__ = ["CHANGED", "asked", "model", "wanted"]


def test_the_same_answers_in_company_with_drafts(llm, model, wanted):
    check_company(make_engine(llm, model, proposer=llm.NgramProposer(2, 1, 5)), wanted)


def test_drafts_are_judged_one_by_one(llm, model):
    """Where a text repeats itself all rows of a step have answers of their own."""
    odd = Odd()
    prompt = Prompt([5, 6] * 20, replace(LONG, max_tokens=30), processors=(odd,))
    engine = make_engine(llm, model, proposer=llm.NgramProposer(2, 1, 4))
    (done,) = engine.generate([prompt])
    assert done.token_ids == alone(llm, model, replace(prompt, processors=(Odd(),)))
    assert max(map(len, odd.answers)) >= 30 - 1
    assert len(odd.answers) > 30, "no drafts were verified"
    sums = np.cumsum([0, *done.token_ids])[:-1]
    assert all((token + total + 40) % 2 == 1 for token, total in zip(done.token_ids, sums, strict=True))
