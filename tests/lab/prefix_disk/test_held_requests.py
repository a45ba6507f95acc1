"""Requests that wait for the disk: nobody waits for them, and they keep their place."""

import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from tests.helpers.disk_faults import disked
from tests.helpers.fuzz_models import Models

import tiny_llm_ref
from tiny_llm_lab.serving.async_engine.reports import Reports
from tiny_llm_lab.serving.prefix_disk import prefix_disk
from tiny_llm_lab.serving.prefix_disk.folder import Folder
from tiny_llm_lab.serving.prefix_disk.reader import Row
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


def test_others_are_served_meanwhile_and_the_place_in_the_queue_is_kept(slow):
    slow.engine.add("known", KNOWN, SHORT)
    slow.engine.add("long", NEW[0], SamplingParams(max_tokens=100, ignore_eos=True))
    for number in range(1, 4):
        slow.engine.add(str(number), NEW[number], SHORT)
    while not slow.engine.step():
        pass
    assert [each.request_id for each in slow.engine.core.scheduler.running] == ["long"]
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
    slow.is_read.set()
    reader = slow.engine.core.options.prefix_disk._reader
    while not reader._rows.qsize():
        time.sleep(0.001)
    assert slow.counts.num_read_bytes <= reader._block_bytes, "the rest of it is not read any more"
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


def taken(patch, rows, last_step_s=9.0, running=(), cost_s=0.0):
    """What `take_in` does with a script of rows, and its waits; each look at its clock costs `cost_s`."""
    now_s, waits, done, core = [100.0], [], [], Mock()

    def clock(passed_s=0.0):
        now_s[0] += cost_s + passed_s
        return now_s[0]

    def take(seconds):
        waits.append(seconds)
        return rows.pop(0) if rows else clock(seconds) and None

    patch.setattr(prefix_disk, "time", SimpleNamespace(monotonic=clock))
    core.scheduler.queue = SimpleNamespace(running=running, waiting=())
    ahead = prefix_disk.ReadAhead(Mock(), Mock(), b"")
    ahead.watch(core, Mock(), Mock(), SimpleNamespace(take=take))
    ahead._held, ahead._last_row_s = {"a": None}, 99.0
    ahead._put_blocks = lambda some: done.append([row.index for row in some])
    ahead._put_states, ahead._resume = lambda row: done.append(-row.index), done.append
    ahead.take_in(last_step_s)
    return done, waits


@pytest.mark.parametrize(("last_step_s", "most_s"), [(0.0, 0.005), (0.05, 0.005), (0.2, 0.02)])
def test_a_step_waits_a_few_milliseconds_for_the_disk_if_all_requests_do(last_step_s, most_s, monkeypatch):
    most = pytest.approx(most_s)
    for count, running, waits in ((0, (), [most]), (1, (), [most, 0.0]), (0, ("x",), [0.0])):
        rows = [Row("a", 0, b"", "block")] * count
        assert taken(monkeypatch, rows, last_step_s, running) == ([[0]] * count, waits)
    rows = [Row("ab"[index == 0], index, b"", "block") for index in range(99)]
    parts = [[0], [*range(1, 17)], [*range(17, 33)]]
    assert taken(monkeypatch, [*rows[:40], Row("a", 0, b"", "end")])[0] == [*parts, [*range(33, 40)], "a"]
    num_taken = sum(map(len, taken(monkeypatch, rows, last_step_s, cost_s=0.001)[0]))
    assert 0 < num_taken < 1000 * most_s and len(rows) == 99 - num_taken


def test_release_does_not_wait_for_a_read(slow):
    slow.engine.add("known", KNOWN, SHORT)
    assert slow.engine.step() == []
    slow.engine.release()
    assert not slow.engine.has_requests
