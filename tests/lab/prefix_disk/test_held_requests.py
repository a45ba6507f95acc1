"""Requests that wait for the disk: nobody waits for them, and they keep their place."""

import threading
import time

import pytest
from tests.helpers.disk_faults import disked
from tests.helpers.fuzz_models import Models

import tiny_llm_ref
from tiny_llm_lab.serving.async_engine.reports import Reports
from tiny_llm_lab.serving.prefix_disk import prefix_disk
from tiny_llm_lab.serving.prefix_disk.folder import Folder
from tiny_llm_lab.types import SamplingParams, SchedulerConfig, StepPlan, StepStats

pytestmark = pytest.mark.usefixtures("kernels_on")
KNOWN = [97 + i % 26 for i in range(61)]
NEW = [[letter] * 20 for letter in range(100, 110)]
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)


class SlowDisk:
    """An engine whose folder has the prompt KNOWN, and reads nothing before `is_read` is set."""

    def __init__(self, path, patch, max_num_seqs):
        model = Models(tiny_llm_ref).of("qwen3", "cpp")
        config = SchedulerConfig(max_model_len=200, max_num_seqs=max_num_seqs)
        first = disked(model, Folder(path, 1 << 30), config=config)
        first.add("known", KNOWN, SHORT)
        self.answer = self._end(first, [])["known"]
        first.release()
        self.is_read, read = threading.Event(), Folder.read

        def reading(folder, name, nbytes):
            self.is_read.wait()
            return read(folder, name, nbytes)

        patch.setattr(Folder, "read", reading)
        self.engine = disked(model, Folder(path, 1 << 30), config=config)
        self.counts = self.engine.core.options.prefix_disk.counts

    def _end(self, engine, order):
        answers = {}
        while engine.has_requests:
            for output in engine.step():
                if output.completion is not None:
                    answers[output.request_id] = output.completion.token_ids
                    order.append(output.request_id)
        return answers

    def read_all(self):
        """Let the reader read, and wait until it has read 15 blocks, and says that there are no more."""
        self.is_read.set()
        while self.engine.core.options.prefix_disk._reader._rows.qsize() < 16:
            time.sleep(0.001)

    def end(self, order):
        """Step until no request is left; `order` gets their ids as they end."""
        return self._end(self.engine, order)


@pytest.fixture
def slow(tmp_path, monkeypatch):
    disk = SlowDisk(tmp_path, monkeypatch, max_num_seqs=1)
    yield disk
    disk.is_read.set()
    disk.engine.release()


def test_others_are_served_meanwhile_and_the_place_in_the_queue_is_kept(slow, monkeypatch):
    slow.engine.add("known", KNOWN, SHORT)
    slow.engine.add("long", NEW[0], SamplingParams(max_tokens=100, ignore_eos=True))
    for number in range(1, 4):
        slow.engine.add(str(number), NEW[number], SHORT)
    while not slow.engine.step():
        pass
    assert [each.request_id for each in slow.engine.core.scheduler.running] == ["long"]
    reader, waits = slow.engine.core.options.prefix_disk._reader, []
    with monkeypatch.context() as patch:
        patch.setattr(reader, "take", waits.append)
        slow.engine.step()
    assert waits == [0.0], "it looks once"
    slow.read_all()
    order = []
    answers = slow.end(order)
    assert order == ["long", "known", "1", "2", "3"]
    assert answers["known"] == slow.answer
    assert slow.counts.num_hit_tokens == 60


def test_an_engine_that_waits_for_the_disk_alone_has_requests_and_idle_steps(slow):
    slow.engine.add("known", KNOWN, SHORT)
    assert [slow.engine.step() for _ in range(20)] == [[]] * 20
    assert slow.engine.has_requests
    reports, stats = Reports(slow.engine), StepStats(1.0, 2.0, 3, 4, 5, 6)
    told = reports.step(StepPlan({}), stats).stats.num_waiting, reports.queues().num_waiting
    assert told == (stats.num_waiting + 1, 1), "it waits like the others"
    slow.engine.add("new", NEW[0], SHORT)
    order = []
    while not order:
        order += [each.request_id for each in slow.engine.step() if each.completion]
    assert order == ["new"]
    slow.is_read.set()
    assert slow.end(order)["known"] == slow.answer


def test_a_request_may_leave_while_it_waits(slow):
    slow.engine.add("known", KNOWN, SHORT)
    assert slow.engine.step() == []
    assert slow.engine.abort("known")
    assert not slow.engine.has_requests
    slow.read_all()
    slow.engine.add("new", NEW[0], SHORT)
    assert list(slow.end([])) == ["new"]
    slow.engine.add("known", KNOWN, SHORT)  # the id is free again
    assert slow.end([])["known"] == slow.answer


def test_a_disk_that_does_not_answer_is_not_waited_for(slow, monkeypatch):
    monkeypatch.setattr(prefix_disk, "_PATIENCE_S", 0.0)
    for name in ("known", "again"):
        slow.engine.add(name, KNOWN, SHORT)
        assert slow.end([])[name] == slow.answer
    assert slow.counts.num_hit_tokens == 0
    monkeypatch.setattr(prefix_disk, "_PATIENCE_S", 100.0)
    slow.is_read.set()  # it answers again
    pool = slow.engine.core.prefix_cache.pool
    while not slow.counts.num_hit_tokens:
        pool.free(pool.allocate(pool.num_free))  # memory forgets
        slow.engine.add("later", KNOWN, SHORT)
        assert slow.end([])["later"] == slow.answer


def test_who_waits_is_served_once_the_disk_is_given_up(slow, monkeypatch):
    slow.engine.add("known", KNOWN, SHORT)
    assert slow.engine.step() == []
    monkeypatch.setattr(slow.engine.core.options.prefix_disk._ahead, "take_in", lambda last_step_s: 1 / 0)
    done = [each.completion for _ in range(20) for each in slow.engine.step() if each.completion]
    assert [each.token_ids for each in done] == [slow.answer] and not slow.engine.has_requests


def test_release_does_not_wait_for_a_read(slow):
    slow.engine.add("known", KNOWN, SHORT)
    assert slow.engine.step() == []
    slow.engine.release()
    assert not slow.engine.has_requests
