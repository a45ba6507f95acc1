"""What a step does with a long text, counted: not all of it again for each row and each draft."""

from unittest.mock import Mock

import mlx.core as mx
import pytest
from tests.helpers.phases import arrival_of
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import DraftRequest, num_common
from tiny_llm_lab.types.computing.draw import UNCHANGED
from tiny_llm_ref.engine.request_state import RequestState
from tiny_llm_ref.engine.sequence import TokenSequence
from tiny_llm_ref.generate.answer import Answer
from tiny_llm_ref.speculative.proposers import NgramProposer


class Counted(list):
    """Counts the items that are looked at by Python."""

    num_items = 0

    def __getitem__(self, at):
        self.num_items += not isinstance(at, slice)
        return super().__getitem__(at)


@pytest.mark.parametrize("kinds", [(list, list), (tuple, tuple), (list, tuple), (tuple, list)])
@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 8192, 9000])
def test_how_much_two_texts_have_in_common(length, kinds):
    one, other = (kind(range(length)) for kind in kinds)
    for num_first in {0, 1, length // 2, length - 1, length} & set(range(length + 1)):
        cut, behind = one[:num_first], kinds[0]([-1])
        assert num_common(cut, other) == num_common(other, cut) == num_first
        assert num_common(cut + behind, other) == num_common(other, cut + behind) == num_first
        assert num_common(cut + behind + one[num_first + 1 :], other) == num_first


def test_a_rejected_draft_is_found_without_a_look_at_every_token():
    text = list(range(300, 100_300))
    one, other = Counted([*text, 1, 2]), Counted([*text, 3])
    assert num_common(one, other) == len(text)
    assert 0 < one.num_items + other.num_items <= 8192


class Lent:
    """A `RowProcessor` that remembers which lists it was lent."""

    def __init__(self):
        self.answers = []

    def __call__(self, logits, prompt, answer):
        self.answers.append(answer)
        return logits

    def changes(self, answer, vocab_size):
        self.answers.append(answer)
        return UNCHANGED


def test_a_row_without_a_draft_does_not_copy_the_answer():
    sequence, lent = TokenSequence("r", [1]), Lent()
    sequence.advance(1, [2])
    sequence.spec_token_ids = [3, 4]
    answer = Answer(ByteTokenizer(), arrival_of([1]), [1], 64)
    request = RequestState(sequence, answer, Mock(), [lent])
    request.changes(3, 8)
    request.process(mx.zeros((3, 8)))
    assert lent.answers == [[2], [2, 3], [2, 3, 4]] * 2
    assert lent.answers[0] is lent.answers[3] is sequence.output_token_ids


class Read(TokenSequence):
    """Counts the tokens that are read of it."""

    num_read = 0

    @property
    def token_ids(self):
        raise AssertionError("all of the text is copied")

    def tokens_between(self, start, end):
        self.num_read += end - start
        return super().tokens_between(start, end)


def test_a_draft_that_is_looked_up_reads_only_what_is_new():
    proposer = NgramProposer()
    for name in "ab":  # two requests, of which the second one takes the id of the first
        sequence = Read("r", [*b"abcdab", *name.encode()])
        sequence.advance(7, [*b"a"])
        for token in b"bcb":
            wanted = NgramProposer().look_up([*sequence.prompt_token_ids, *sequence.output_token_ids])
            assert proposer.propose([DraftRequest(sequence, 9, None)]) == [wanted]
            assert sequence.num_read == sequence.num_tokens
            sequence.advance(1, [token])
        proposer.forget("r")
