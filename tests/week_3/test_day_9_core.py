"""Day 3.9: the engine's core forgets drafts when requests end, are aborted, or a step fails."""

from dataclasses import replace

import pytest
from tests.helpers.five_requests import LONG, TWO_AT_A_TIME, add_five, assert_new
from tests.helpers.fragile import BrokenError, Fragile
from tests.helpers.serving import make_engine

from tiny_llm_lab.types import Draft, Proposer

pytestmark = pytest.mark.task("3.9.6")


class Repeater(Proposer):
    """Drafts the last token again; remembers whom it drafted for, and who was forgotten."""

    def __init__(self, fails_for=()):
        self.known, self.forgotten, self.fails_for = set(), [], fails_for

    def look_up(self, token_ids, request_id=None):
        self.known.add(request_id)
        return Draft((token_ids[-1],) * 3)

    def forget(self, request_id):
        self.forgotten.append(request_id)
        self.known.discard(request_id)
        if request_id in self.fails_for:
            raise LookupError(f"no draft of {request_id}")


@pytest.mark.parametrize("fails_for", [(), ("r0",), ("r1",), ("r0", "r1")])
def test_a_forget_that_raises_does_not_keep_the_rest_behind(llm, model, fails_for):
    fragile, proposer = Fragile(model), Repeater(fails_for)
    engine = make_engine(llm, fragile, TWO_AT_A_TIME, proposer=proposer)
    old = engine.core.scheduler
    add_five(engine)
    fragile.error = BrokenError()
    with pytest.raises((BrokenError, LookupError)):
        engine.step()
    assert proposer.known == set()
    fragile.error = None
    assert_new(engine, old)
    engine.add("next", [97], replace(LONG, max_tokens=1))
    assert [output.request_id for output in engine.step()] == ["next"]


def test_a_request_that_ends_or_is_aborted_is_forgotten_by_the_proposer(llm, model):
    proposer = Repeater()
    engine = make_engine(llm, model, proposer=proposer)
    for name, max_tokens in (("ends", 9), ("aborted", 12), ("stays", 12)):
        engine.add(name, [97] * 5, replace(LONG, max_tokens=max_tokens))
    engine.step()
    engine.step()
    assert proposer.known == {"ends", "aborted", "stays"}
    engine.abort("aborted")
    assert proposer.known == {"ends", "stays"}
    while "ends" in proposer.known and engine.has_requests:
        ended = [output.request_id for output in engine.step() if output.completion]
        assert ("ends" in ended) == ("ends" not in proposer.known)
    assert "ends" not in proposer.known
    engine.release()
    assert proposer.known == set()
