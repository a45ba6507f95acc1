"""Requests wait until their pictures are read; the tower's work goes between the steps of others."""

from pathlib import Path
from unittest.mock import Mock

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.pictures import PLACE, SEEING, SEEING_HYBRID, TOWER, SeeingEngine, picture, seeing_weights
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab import load_solution
from tiny_llm_lab.runtime.pictures.picture import MOST_PATCHES, Picture, expanded
from tiny_llm_lab.serving.picture_queue import products_per_token
from tiny_llm_lab.types import Checkpoint, SamplingParams, SchedulerConfig, UserError
from tiny_llm_lab.types.scheduling.no_prefix_disk import NoPrefixDisk

ONE = SamplingParams(max_tokens=3, ignore_eos=True)
LONG = SamplingParams(max_tokens=200, ignore_eos=True)


class Under:
    """An engine of a toy that reads pictures, in steps of `num_tokens`."""

    def __init__(self, config=SEEING, num_tokens=8, num_bytes=10**6, **settings):
        weights = seeing_weights(config)
        self.llm = load_solution("ref")
        model = self.llm.build_model(
            Checkpoint("toy", Path("toy"), config, weights, ByteTokenizer(), mx.float32)
        )
        self.seeing = SeeingEngine(model, weights, num_bytes=num_bytes)
        scheduler = SchedulerConfig(max_num_batched_tokens=num_tokens, max_num_seqs=4, max_model_len=300)
        self.on_step = []
        options = self.seeing.options(on_step=lambda plan, stats: self.on_step.append(plan), **settings)
        self.engine = self.llm.Engine(model, ByteTokenizer(), scheduler, options)
        self.seeing.queue.watch(self.engine)
        self.queue, self.store = self.seeing.queue, self.seeing.store

    def add(self, name, pictures, text=(5, 6, 7), sampling=ONE):
        tokens = expanded([*text, *[PLACE, 9] * len(pictures)], pictures, TOWER)
        self.engine.add(name, tokens, sampling, pictures=self.queue.with_pictures(tokens, pictures))
        return tokens

    def run(self):
        found = {}
        for _ in range(3000):
            for output in self.engine.step():
                found.setdefault(output.request_id, []).extend(output.token_ids)
            if not self.engine.has_requests:
                return found
        raise AssertionError("it does not end")


def test_other_requests_get_a_token_in_each_step_while_a_picture_is_read():
    under = Under(num_tokens=4)
    under.add("a", [], sampling=LONG)
    for _ in range(3):
        under.engine.step()
    under.add("p", [picture(1, 20, 20)])
    num_steps = 0
    while under.queue.num_held or not num_steps:
        outputs = under.engine.step()
        assert [each.request_id for each in outputs if each.token_ids] == ["a"]
        num_steps += 1
    # Each piece of the tower's work is worth more than half of such a step, so there is one in each.
    costs = _costs(under.store.tower, picture(1, 20, 20))
    assert min(costs) > 2 * products_per_token(SEEING)
    assert num_steps == len(costs) + 1


def test_a_step_has_as_many_pieces_as_half_of_its_tokens_are_worth():
    costs = _costs(Under().store.tower, picture(1, 20, 20))
    num_tokens = 2 * (sum(costs[:3]) // products_per_token(SEEING) - 1)
    under = Under(num_tokens=num_tokens)
    under.add("p", [picture(1, 20, 20)])
    num_steps = 0
    while under.queue.num_held or not num_steps:
        under.engine.step()
        num_steps += 1
    assert num_steps == pytest.approx((len(costs) + 1) / 3, abs=1)


def _costs(tower, picture):
    work, costs = tower.work(picture), []
    while True:
        try:
            costs.append(next(work))
        except StopIteration:
            return costs


def test_chunks_of_others_have_half_of_a_step_while_the_tower_works():
    under = Under(num_tokens=8)
    under.add("p", [picture(1, 20, 20)])
    under.engine.step()
    under.add("t", [], text=range(3, 100))
    under.engine.step()
    assert under.queue.num_held and under.on_step[-1].num_scheduled_tokens == {"t": 4}
    under.run()
    assert max(plan.total_num_scheduled_tokens for plan in under.on_step) == 8


@pytest.mark.parametrize("config", [SEEING, SEEING_HYBRID], ids=["dense", "hybrid"])
def test_a_picture_in_the_prefix_cache_is_not_read_again(config):
    under = Under(config, num_bytes=0)  # rows are forgotten once they are computed
    under.add("a", [picture(1, 4, 6)], text=range(3, 40))
    first = under.run()["a"]
    assert under.queue.counts.num_pictures == 1 and not under.store.has(picture(1, 4, 6))
    under.add("b", [picture(1, 4, 6)], text=range(3, 40))
    assert under.run()["b"] == first
    under.add("c", [picture(2, 4, 6)], text=range(3, 40))
    under.run()
    # "b" needs the rows again only where its last block was not found.
    assert under.queue.counts.num_pictures <= 3


def test_rows_are_kept_as_long_as_there_is_room():
    rows = Under().store.rows(picture(1, 4, 4)).nbytes
    under = Under(num_bytes=2 * rows, enable_prefix_caching=False)
    for i, seed in enumerate((1, 2, 1, 3, 1, 2)):
        under.add(str(i), [picture(seed, 4, 4)])
        under.run()
    # 1 and 2 are read, 1 is there, 3 takes the place of 2, 1 is there, 2 takes the place of 3.
    assert under.queue.counts.num_pictures == 4
    assert under.queue.counts.num_picture_hits == 2


def test_who_leaves_takes_begun_work_along_and_nobody_elses():
    under = Under(num_tokens=4)
    under.add("a", [], sampling=LONG)
    first = [token for output in under.engine.step() for token in output.token_ids]
    under.add("p", [picture(1, 20, 20)])
    under.add("q", [picture(1, 20, 20), picture(2, 20, 20)])
    first += [token for output in under.engine.step() for token in output.token_ids]
    assert under.queue.num_held == 2
    assert under.engine.abort("p")
    assert under.queue.num_held == 1 and list(under.store._begun) == [picture(1, 20, 20).digest]
    assert under.engine.abort("q")
    assert under.queue.num_held == 0 and not under.store._begun
    assert len(first + under.run()["a"]) == 200


def test_a_step_that_fails_lets_held_requests_go():
    under = Under(num_tokens=4)
    under.add("a", [], sampling=LONG)
    under.add("p", [picture(1, 20, 20)])
    under.engine.step()
    work, under.store.tower.work = under.store.tower.work, None
    under.add("q", [picture(2, 20, 20)])
    with pytest.raises(TypeError):
        under.run()
    under.store.tower.work = work
    assert under.queue.num_held == 0
    under.add("r", [picture(2, 4, 4)])
    assert len(under.run()["r"]) == 3


def test_a_picture_whose_reading_was_interrupted_is_read_from_its_beginning():
    under, expected = Under(), Under()
    expected.add("p", [picture(1, 20, 20)])
    answer = expected.run()["p"]
    for error in (KeyboardInterrupt, MemoryError):
        under.add("p", [picture(1, 20, 20)])
        under.engine.step()
        heads, under.store.tower._heads = under.store.tower._heads, Mock(side_effect=error)
        with pytest.raises(error):
            under.run()
        under.store.tower._heads = heads
        under.add("t", [])
        assert len(under.run()["t"]) == 3, "text alone"
    under.add("p", [picture(1, 20, 20)])
    assert under.run()["p"] == answer


@pytest.mark.parametrize(("room", "num_own"), [(2, 1), (0, 1), (1, 3)])
def test_the_tower_does_not_read_far_ahead_of_prompts(room, num_own):
    rows = Under().store.rows(picture(1, 4, 4)).nbytes
    under, peak = Under(num_bytes=room * rows, enable_prefix_caching=False), 0
    under.queue._products *= 1000  # a large model: in the time of a token the tower reads many pictures
    for i in range(12):
        under.add(str(i), [picture(num_own * i + k, 4, 4) for k in range(num_own)], text=range(3, 40))
    while under.engine.has_requests:
        under.engine.step()
        peak = max(peak, sum(each.nbytes for each in under.store._found.values()))
    assert rows * num_own <= peak <= (room + num_own) * rows, "what there is room for, and one request's"


@pytest.mark.parametrize("num_tokens", [8, 64])
@pytest.mark.parametrize(("share", "num_bytes"), [(1, 10**6), (30, 0), (1000, 5000)])
def test_no_picture_is_read_within_a_step(share, num_tokens, num_bytes):
    under = Under(num_tokens=num_tokens, num_bytes=num_bytes, enable_prefix_caching=False)
    under.queue._products *= share
    rows, missing = under.store.rows, []
    under.store.rows = lambda each: missing.append(not under.store.has(each)) or rows(each)
    for i in range(12):
        under.add(str(i), [picture(i, 4, 4)], text=range(3, 40))
    under.run()
    assert len(missing) >= 12 and not any(missing)


BAD = {
    "fewer tokens": ([5, PLACE, 6], [picture(1, 4, 4)], "1 tokens of pictures, which have 4"),
    "more tokens": ([PLACE] * 5, [picture(1, 4, 4)], "5 tokens of pictures, which have 4"),
    "torn apart": ([PLACE, PLACE, 5, PLACE, PLACE], [picture(1, 4, 4)], "one behind the other"),
    "too large": (
        [PLACE] * (MOST_PATCHES // 4 + 2),
        [Picture(np.zeros((MOST_PATCHES + 8, 3, 4, 4), np.uint8), 2, MOST_PATCHES // 2 + 4)],
        f"and may have {MOST_PATCHES}",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_pictures_that_are_not_the_prompts(name):
    tokens, pictures, complaint = BAD[name]
    with pytest.raises(UserError, match=complaint):
        Under().queue.with_pictures(tokens, pictures)


def test_an_engine_without_a_tower_takes_no_pictures():
    with pytest.raises(UserError, match="reads text only"):
        NoPrefixDisk().with_pictures([PLACE], [picture(1, 2, 2)])
