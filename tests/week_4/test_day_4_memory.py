"""Day 4.4: the states of many requests in the steps of an engine."""

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.hybrid_layers import CONFIG, SIZES

from tiny_llm_lab.types import DeltaState
from tiny_llm_lab.types.computing.paged import Slice, StateUse


def rule(
    rows: Sequence[mx.array], states: Sequence[DeltaState], starts: Sequence[int]
) -> tuple[mx.array, list[DeltaState]]:
    """A state is 3 times the one before plus its token, in whole numbers; an output is the state after."""
    (tokens,) = rows
    outs, after = [], []
    for r, (tail, matrices) in enumerate(states):
        number = matrices.reshape(-1)[0]
        for t in range(starts[r], starts[r + 1]):
            number = (3 * number + tokens[t, 0]) % 1009
            outs.append(number)
        after.append((tail + 1, mx.broadcast_to(number, matrices.shape)))
    return mx.stack(outs)[:, None] if outs else mx.zeros((0, 1)), after


def number_after(tokens: Sequence[int]) -> int:
    number = 0
    for token in tokens:
        number = (3 * number + token) % 1009
    return number


class Steps:
    """A cache, and one layer of it in one step after the other."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.cache = llm.HybridKvCache(CONFIG, CONFIG.hybrid, 64, 4, mx.float32, None)

    def run(self, *requests: tuple[Sequence[int], int, StateUse]) -> list[int]:
        """Tokens of each request, how many of them were computed before, and its states -> outputs."""
        slices = [Slice(range(16), before, len(text) - before, use) for text, before, use in requests]
        layout = self.llm.StepLayout.of(4, slices)
        tokens = [float(token) for text, before, _ in requests for token in text[before:]]
        layer = self.cache.begin_step(layout)[0]
        assert layer.offsets(9) == layout.positions
        out = layer.update(rule, [mx.array(tokens)[:, None]], len(tokens), 1)
        mx.eval(out, self.cache.pools)
        return [int(number) for number in out[:, 0].tolist()]

    def seen(self, slot: int) -> int:
        return int(self.cache.states[0].states[slot][1].reshape(-1)[0].item())


@pytest.mark.task("4.4.1")
def test_each_request_goes_on_from_its_own_slot(llm: Any) -> None:
    steps, first, second = Steps(llm), [5, 6, 7], [1, 2]
    assert steps.run((first, 0, StateUse(1)), (second, 0, StateUse(0))) == [5, 21, 70, 1, 5]
    assert steps.run(([*second, 9], 2, StateUse(0)), ([*first, 1, 1], 3, StateUse(1))) == [24, 211, 634]
    assert (steps.seen(0), steps.seen(1)) == (24, 634)


@pytest.mark.task("4.4.1")
def test_a_new_request_in_an_old_slot_starts_from_zeros(llm: Any) -> None:
    steps = Steps(llm)
    steps.run(([5, 6], 0, StateUse(0)))
    assert steps.run(([4], 0, StateUse(0))) == [4]


@pytest.mark.task("4.4.1")
def test_a_state_that_has_seen_other_tokens_is_refused(llm: Any) -> None:
    steps = Steps(llm)
    steps.run(([5, 6, 7], 0, StateUse(0)))
    for before, slot in ((2, 0), (4, 0), (3, 1)):
        with pytest.raises(ValueError):
            steps.run(([5, 6, 7, 8, 9], before, StateUse(slot)))
    assert steps.run(([5, 6, 7, 8], 3, StateUse(0))) == [number_after([5, 6, 7, 8])]


@pytest.mark.task("4.4.1")
def test_a_snapshot_in_the_middle_of_a_chunk(llm: Any) -> None:
    steps, text = Steps(llm), [3, 1, 4, 1, 5, 9, 2, 6]
    other = [8, 8, 8]
    want = [number_after(text[: i + 1]) for i in range(8)] + [8, 32, 104]
    assert steps.run((text, 0, StateUse(0, -1, ((4, 7), (8, 2)))), (other, 0, StateUse(1))) == want
    for snapshot, count in ((7, 4), (2, 8)):
        got = steps.run(([*text[:count], 6], count, StateUse(3, snapshot)))
        assert got == [number_after([*text[:count], 6])], f"from the snapshot after {count} tokens"
    assert steps.seen(0) == number_after(text), "who goes on from a snapshot disturbs nobody"
    pairs = zip(*(steps.cache.states[0].states[number] for number in (0, 2)), strict=True)
    assert all(kept is not own for own, kept in pairs), "a part of an array keeps the whole"


@pytest.mark.task("4.4.1")
@pytest.mark.parametrize("seed", range(8))
def test_any_steps_give_what_each_text_gives_alone(llm: Any, seed: int) -> None:
    rng, steps = random.Random(seed), Steps(llm)
    texts: dict[int, list[int]] = {}  # by slot
    snapshots: dict[int, list[int]] = {}
    for _ in range(12):
        requests, want = [], []
        for slot in rng.sample(range(4), rng.randint(1, 4)):
            text, source = list(texts.get(slot, [])), -1
            if not text or len(text) > 40 or rng.random() < 0.3:
                source = rng.choice([-1, *snapshots])
                text = list(snapshots.get(source, []))
            before = len(text)
            text += [rng.randrange(9) for _ in range(rng.choice((1, 1, 2, 9, 13)))]
            borders = [n for n in range(before + 1, len(text) + 1) if n % 4 == 0 and rng.random() < 0.5]
            kept = tuple((n, 10 * slot + 4 + i) for i, n in enumerate(borders))
            requests.append((text, before, StateUse(slot, source, kept)))
            want += [number_after(text[: i + 1]) for i in range(before, len(text))]
        assert steps.run(*requests) == want
        for text, _, use in requests:
            texts[use.slot] = text
            snapshots |= {number: text[:n] for n, number in use.kept}


@pytest.mark.task("4.4.1")
def test_what_a_step_must_compute(llm: Any) -> None:
    """Keys and values, and the states and snapshots that the step made; not those of all requests."""
    steps = Steps(llm)
    num_pools = len(steps.cache.pools)
    steps.run(([1] * 8, 0, StateUse(0, -1, ((8, 9),))), ([2], 0, StateUse(1)))
    assert len(steps.cache.pools) == num_pools + 2 * 3
    steps.run(([2, 2], 1, StateUse(1)))
    assert len(steps.cache.pools) == num_pools + 2
    steps.cache.release()
    with pytest.raises(ValueError):
        steps.run(([1], 0, StateUse(0)))


@pytest.mark.task("4.4.1")
def test_layers_are_in_the_order_of_the_model(llm: Any) -> None:
    cache = Steps(llm).cache
    layout = llm.StepLayout.of(4, [Slice([0], 0, 1, StateUse(0))])
    kinds = [isinstance(layer, llm.PagedLayer) for layer in cache.begin_step(layout)]
    assert kinds == [kind == "full_attention" for kind in CONFIG.hybrid.mixers]
    assert len(cache.keys) == 1 and len(cache.states) == 1
    assert CONFIG.hybrid.delta_net == SIZES


@pytest.mark.task("4.4.5")
@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_a_rejected_draft_is_taken_back(llm: Any, accepted: int) -> None:
    steps, text, draft = Steps(llm), [3, 1, 4], [1, 5, 9]
    steps.run((text, 0, StateUse(2)), ([7], 0, StateUse(0)))
    use = StateUse(2, -1, ((4, 5),), num_drafted=3)
    steps.run(([*text, 6, *draft], 3, use), ([7, 7], 1, StateUse(0)))
    steps.cache.cut_back(2, 4 + accepted)
    known = [*text, 6, *draft[:accepted]]
    assert steps.seen(2) == number_after(known)
    assert steps.run(([*known, 8], len(known), StateUse(2))) == [number_after([*known, 8])]
    assert steps.seen(0) == number_after([7, 7])
    assert steps.run(([*text, 6, 2], 4, StateUse(1, 5))) == [number_after([*text, 6, 2])]
