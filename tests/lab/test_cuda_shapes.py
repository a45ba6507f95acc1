"""What is another shape on CUDA, on a machine that claims to have it; nothing here was run on one."""

import mlx.core as mx
import pytest

from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.runtime.native import mlx_ops
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.serving import drafting
from tiny_llm_lab.serving.drafting import EvenDrafts
from tiny_llm_lab.types import Draft, DraftRequest, Proposer

MANY = SamplingParams(max_tokens=24, ignore_eos=True)


class Fixed(Proposer):
    """Drafts of a given length; keeps whom to forget, and how many tokens it was asked for."""

    def __init__(self, length):
        self.length, self.forgotten, self.asked = length, [""], []

    def propose(self, asked):
        self.asked += [each.num_tokens for each in asked]
        return [Draft(tuple(range(self.length)), mx.zeros((self.length, 4))) for _ in asked]

    def forget(self, request_id):
        self.forgotten.append(request_id)


CUT = [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (7, 4), (8, 8), (15, 8), (16, 16)]


@pytest.mark.parametrize(("length", "kept"), CUT)
def test_drafts_are_cut_to_a_power_of_two(length, kept):
    proposer = Fixed(length)
    (draft,) = EvenDrafts(proposer).propose([DraftRequest(None, length, None)])
    assert proposer.asked == [kept], "nothing is computed to be cut"
    assert draft.token_ids == tuple(range(kept)) and draft.probs is not None and len(draft.probs) == kept
    EvenDrafts(proposer).forget("a")
    assert proposer.forgotten == ["", "a"]


@pytest.mark.parametrize(("is_cuda", "room"), [(False, (65, 256, 257)), (True, (256, 256, 512))])
def test_rows_have_room_for_whole_multiples_on_cuda(monkeypatch, is_cuda, room):
    monkeypatch.setattr(mlx_ops, "is_cuda", lambda: is_cuda)
    stored = mx.arange(2 * 3 * 5 * 4).reshape(2, 3, 5, 4).astype(mx.float32)
    grown = [MlxOps(widens=True).grow(stored, 2, asked, [5, 4]) for asked in (65, 256, 257)]
    assert tuple(each.shape[2] for each in grown) == room
    assert all(mx.array_equal(each[:, :, :5], stored) for each in grown)


def test_answers_are_those_of_drafts_of_any_length(monkeypatch):
    prompt = "The red fox. The red fox. The red"
    want = LLM(speculate="ngram").generate([prompt], MANY)[0].token_ids
    monkeypatch.setattr(drafting, "is_cuda", lambda: True)
    assert LLM(speculate="ngram").generate([prompt], MANY)[0].token_ids == want
