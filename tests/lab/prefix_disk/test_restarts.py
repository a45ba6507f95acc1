"""Prefixes that outlive their engine: what the next one computes, and who is not found."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import replace
from unittest.mock import Mock

import mlx.core as mx
import pytest
from tests.helpers.disk_faults import FAULTS, disked, fault_run, files_in
from tests.helpers.fuzz_models import Models
from tests.helpers.hybrids import HYBRID

import tiny_llm_ref
from tiny_llm_lab import LLM, AsyncLLM, SamplingParams
from tiny_llm_lab.runtime.growing_pool import GrowingModel
from tiny_llm_lab.serving.prefix_disk import kv_rows, saver
from tiny_llm_lab.serving.prefix_disk.folder import Folder
from tiny_llm_lab.serving.prefix_disk.prefix_disk import find_chain
from tiny_llm_lab.types import Prompt
from tiny_llm_ref.cache.paged_states import HybridKvCache

pytestmark = pytest.mark.usefixtures("kernels_on")
ANSWER = SamplingParams(max_tokens=6, ignore_eos=True)
# A process that is killed while it writes.
WRITER = """
import sys, random
from tiny_llm_lab import LLM, SamplingParams
with LLM(prefix_cache_dir=sys.argv[1]) as llm:
    print("ready", flush=True)
    for number in range(10_000):
        rng = random.Random(number)
        llm.generate([[rng.randrange(1, 250) for _ in range(400)]], SamplingParams(max_tokens=1))
"""


@pytest.fixture(scope="module")
def models():
    return Models(tiny_llm_ref)


@pytest.mark.parametrize("fault", [*FAULTS, "full", "none"])
def test_no_answer_changes_whatever_happens_to_the_folder(models, fault):
    runs = int(os.environ.get("TINY_LLM_DISK_RUNS", "2"))
    counts = sum((fault_run(models, seed, fault) for seed in range(runs)), start=fault_run(models, 99, fault))
    reached = {"full": "num_dropped_blocks", "none": "num_hit_tokens", "lose": "spoiled", "block": "spoiled"}
    assert counts[reached.get(fault, "num_damaged_blocks")] > 0, counts


@pytest.mark.parametrize("model", ["default", "default-hybrid"])
@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_after_a_restart_a_prompt_computes_its_last_block(tmp_path, model, dtype):
    prompt = [number * number % 250 + 1 for number in range(700)]
    computed = []
    answers = []
    for folder in (None, str(tmp_path), str(tmp_path)):
        computed.clear()
        with LLM(
            model,
            kv_cache_dtype=dtype,
            prefix_cache_dir=folder,
            on_step=lambda plan, _: computed.append(plan.total_num_scheduled_tokens),
        ) as llm:
            answers += llm.generate([prompt], ANSWER)
            disk = llm.engine.core.options.prefix_disk
    assert answers[0].token_ids == answers[1].token_ids == answers[2].token_ids
    assert disk.counts.num_hit_tokens == 688
    assert computed[0] == 700 - 688, "the last block is never found as a whole"
    assert disk.counts.num_written_blocks == 0, "all of it was there"


@pytest.mark.parametrize("model", ["default", "default-hybrid"])
def test_after_a_restart_the_draft_model_has_its_part_too(tmp_path, model):
    """It agrees with itself about every token, and computes no more of the prompt than the model does."""
    prompt, answer = [number * number % 250 + 1 for number in range(300)], replace(ANSWER, max_tokens=24)
    settings = {"speculate": f"draft:{model}", "draft_gate": False, "prefix_cache_dir": str(tmp_path)}
    for is_again in (False, True):
        with LLM(model, **settings) as llm:
            core, passes = llm.engine.core, []
            small = core.options.proposer.model
            core.options.proposer.model = Passes(small, passes)
            llm.generate([prompt], answer)
            stats, hits = core.spec_stats, core.options.prefix_disk.counts.num_hit_tokens
        assert stats.num_accepted_tokens == stats.num_draft_tokens > 12
        assert (hits == 288, max(passes) < 32) == (is_again, is_again)


def test_only_a_draft_model_has_blocks_of_its_own(tmp_path):
    prompt, hits = [number * number % 250 + 1 for number in range(300)], []
    for speculate in ("off", "ngram", "draft:default", "off"):
        with LLM(speculate=speculate, prefix_cache_dir=str(tmp_path)) as llm:
            llm.generate([prompt], ANSWER)
            hits.append(llm.engine.core.options.prefix_disk.counts.num_hit_tokens)
    assert hits == [0, 288, 0, 288]


CONVERSING = ["default", "default-hybrid", "random:qwen3.5-shrunk", "random:qwen3.5-shrunk,mtp=1"]


@pytest.mark.parametrize("model", CONVERSING)
def test_each_turn_of_a_conversation_computes_what_it_gained(tmp_path, model):
    """Each turn has an engine of its own, which finds all but a block of what the last one computed."""
    known, turns = 0, [[number * number % 250 + 1 for number in range(at, at + 130)] for at in (0, 7)]
    settings = {"speculate": "mtp", "draft_gate": False} if "mtp" in model else {}
    for length in (20, 37, 9):
        asked = [Prompt(turn, replace(ANSWER, max_tokens=length + i)) for i, turn in enumerate(turns)]
        with LLM(model, enable_prefix_caching=False) as llm:
            alone = [each.token_ids for each in llm.generate(asked)]
        computed = []
        on_step = lambda _, stats: computed.append(stats.num_prompt_tokens)  # noqa: E731, B023
        with LLM(model, prefix_cache_dir=str(tmp_path), on_step=on_step, **settings) as llm:
            assert [each.token_ids for each in llm.generate(asked)] == alone
        assert sum(computed) <= sum(map(len, turns)) - known + 2 * 16
        known = sum(len(turn) + len(answer) - 1 for turn, answer in zip(turns, alone, strict=True))
        turns = [[*turn, *answer, 40, 50] for turn, answer in zip(turns, alone, strict=True)]


@pytest.mark.parametrize("model", ["default-hybrid", "random:qwen3.5-shrunk"])
@pytest.mark.parametrize("kept", [(5,), (2, 9), (4, 20)])
def test_states_are_found_behind_blocks_that_came_for_another(tmp_path, model, kept):
    """Prompts of one beginning: what parts later than states were kept goes on from them."""
    whole = [number * number % 250 + 1 for number in range(450)]
    shorter = [[*whole[: 16 * number], 1] for number in kept]
    computed = []
    for is_again in (False, True):
        on_step = lambda _, stats: computed.append(stats.num_prompt_tokens)  # noqa: E731
        with LLM(model, prefix_cache_dir=str(tmp_path), on_step=on_step) as llm:
            for prompt in shorter * (not is_again) + [whole]:
                llm.generate([prompt], ANSWER)
            for number in kept * is_again:
                computed.clear()
                llm.generate([[*whole[: 16 * number + 32], *range(100, 140)]], ANSWER)
                assert sum(computed) <= 32 + 40


class Passes:
    """A model that notes the rows of each pass."""

    def __init__(self, model, rows):
        self.config, self._model, self._rows = model.config, model, rows

    def __call__(self, tokens, *args, **rest):
        self._rows.append(len(tokens))
        return self._model(tokens, *args, **rest)


def test_another_model_or_setting_finds_nothing(models, tmp_path):
    """Of one folder; the same again finds all."""
    prompt = [97 + i % 26 for i in range(50)]
    settings = [
        ("qwen3", b"a", {}),
        ("qwen3", b"b", {}),
        ("qwen3", b"a", {"kv_bits": 8}),
        ("hybrid", b"a", {}),
    ]
    settings.append(("qwen3", b"a", {"block_size": 8}))
    for expected in (0, 48):
        for name, root, options in settings:
            engine = disked(models.of(name, "cpp"), Folder(tmp_path, 1 << 30), root, **options)
            engine.generate([prompt])
            assert engine.core.options.prefix_disk.counts.num_hit_tokens == expected, (name, root, options)
            engine.release()


@pytest.mark.parametrize("seed", range(int(os.environ.get("TINY_LLM_DISK_RUNS", "1"))))
def test_a_process_killed_while_it_writes_leaves_hits_and_misses(tmp_path, seed):
    rng = random.Random(seed)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        least = rng.randint(1, 90)
        while len(files_in(tmp_path)) < least:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    prompts = []
    for number in range(4):
        drawn = random.Random(number)
        prompts.append([drawn.randrange(1, 250) for _ in range(400)])
    with LLM() as llm:
        alone = llm.generate(prompts, ANSWER)
    with LLM(prefix_cache_dir=str(tmp_path)) as llm:
        found = llm.generate(prompts, ANSWER)
        counts = llm.engine.core.options.prefix_disk.counts
    assert [each.token_ids for each in found] == [each.token_ids for each in alone]
    assert counts.num_hit_tokens > 0, "the first block was there as a whole"
    assert counts.num_damaged_blocks == 0, "a file appears as a whole or not at all"


@pytest.mark.parametrize("kernels", ["cpp", "mlx", "off"])
@pytest.mark.parametrize("kv_bits", [None, 8])
@pytest.mark.parametrize("is_in_reach", [True, False])
def test_what_is_read_has_the_same_bits(models, tmp_path, monkeypatch, kernels, kv_bits, is_in_reach):
    monkeypatch.setattr(kv_rows, "is_in_reach", lambda: is_in_reach)
    prompt, stored = [97 + i % 26 for i in range(61)], []
    for name in ("qwen3", "hybrid"):
        for expected in (0, 60):
            engine = disked(models.of(name, kernels), Folder(tmp_path, 1 << 30), kv_bits=kv_bits)
            core = engine.core
            engine.generate([list(range(97, 123)), prompt])  # so that the blocks are not the same
            rows = kv_rows.KvRows(core.kv_caches, (), bytearray())
            blocks = find_chain(core.prefix_cache, core.prefix_cache.keys(prompt))
            assert len(blocks) == 15
            stored.append([bytes(row) for row in rows.copy(blocks)])
            assert core.options.prefix_disk.counts.num_hit_tokens >= expected
            engine.release()
        assert stored[-1] == stored[-2]


def test_a_pool_grows_for_what_is_read(models, tmp_path):
    prompt, answers = [97 + i % 26 for i in range(61)], []
    for expected in (0, 60):
        growing = GrowingModel(models.of("qwen3", "cpp"))
        engine = disked(growing, Folder(tmp_path, 1 << 30))
        assert growing.pools[0].num_stored < 15
        answers += engine.generate([prompt])
        assert engine.core.options.prefix_disk.counts.num_hit_tokens == expected
        engine.release()
    assert answers[0].token_ids == answers[1].token_ids


@pytest.mark.parametrize("is_in_reach", [True, False])
def test_a_row_says_whether_a_draft_model_has_read_the_block(models, monkeypatch, is_in_reach):
    """Its pool may still end before the block."""
    monkeypatch.setattr(kv_rows, "is_in_reach", lambda: is_in_reach)
    growing = GrowingModel(models.of("qwen3", "cpp"))
    cache, is_stored = growing.create_paged_kv_cache(200, 4), bytearray([1, 0] * 100)
    rows = kv_rows.KvRows([cache], growing.pools, is_stored)
    rows.put([11, 14, 91], rows.copy([128, 21, 128]))  # a pool of 4 << 5 blocks ends before 128
    assert (is_stored[11], is_stored[14], is_stored[91], sum(is_stored)) == (1, 0, 1, 101)


def test_states_are_copied_once():
    """On the engine's thread, and those of a large model take 150 MB."""
    assert HYBRID.hybrid is not None
    large = replace(HYBRID.hybrid, delta_net=replace(HYBRID.hybrid.delta_net, value_head_dim=4096))
    cache = HybridKvCache(HYBRID, large, 1, 4, mx.float32, None)
    rows = kv_rows.KvRows([cache], (), bytearray())
    states = random.Random(0).randbytes(rows.state_bytes)
    rows.put_states(7, 12, states)
    tracemalloc.start()
    copied = rows.copy_states(7)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert copied == states
    assert len(copied) == len(states), "bytes, also for whoever counts what waits for the disk"
    assert most < 1.1 * len(states)


def test_what_memory_finds_is_used_on_the_disk(models, tmp_path):
    """Blocks and states, so that the most popular prefix is not the first to go."""
    engine = disked(models.of("hybrid", "cpp"), Folder(tmp_path, 1 << 30))
    prompt = [97 + i % 26 for i in range(61)]
    engine.generate([prompt])
    is_written, disk = threading.Event(), engine.core.options.prefix_disk
    while disk.idle() is not None:
        time.sleep(0.001)
    disk._writer.submit(is_written.set)
    is_written.wait()
    files = files_in(tmp_path)
    for file in files:
        os.utime(file, (0, 0))
    engine.generate([prompt])
    engine.release()
    used = [file.stat().st_size for file in files if file.stat().st_mtime > 0]
    assert len(used) > 15, "15 blocks, and states after some of them"
    assert len(set(used)) == 2


@pytest.mark.parametrize("seed", range(10))
def test_states_are_copied_from_where_they_are_when_they_are_written(seed):
    """A state that went from memory may come again, from an answer or from the disk, before it is written."""
    draw, places, written = random.Random(seed), {}, []
    cache = Mock(snapshots=Mock(has=places.__contains__))
    rows = Mock(state_bytes=1, block_bytes=1, copy_states=lambda number: bytes([number]))
    writer = Mock(has_room=lambda _: draw.random() < 0.5)
    found = saver.Saver(Mock(counts=Mock(num_dropped_blocks=0)), writer, b"")
    found._write = lambda _, key, row: written.append((key, *row))
    found.watch(cache, rows)
    for number in range(200):
        key = draw.choice("abc")
        with found.paused() if draw.random() < 0.5 else contextlib.nullcontext():
            places[key] = number
            cache.snapshots.on_add(key, number, False)
        places.pop(draw.choice("abcd"), None)
        del written[:]
        found.save()
        assert all(places[name] == place for name, place in written), number


def test_an_idle_engine_writes_what_is_new(tmp_path, monkeypatch):
    """Nobody releases it, and no further step comes."""
    monkeypatch.setattr(saver, "_MOST_COPIED", 0)  # one block at a time
    prompt = [number % 250 + 1 for number in range(330)]

    async def answer(num_files):
        async with AsyncLLM(prefix_cache_dir=str(tmp_path)) as llm:
            outputs = [each async for each in llm.generate(prompt, SamplingParams(max_tokens=1))]
            async with asyncio.timeout(60):
                while len(files_in(tmp_path)) < num_files:
                    await asyncio.sleep(0.01)
            return outputs[-1]

    first, second = asyncio.run(answer(20)), asyncio.run(answer(20))
    assert second.num_cached_tokens == 320
    assert first.completion is not None
    assert second.completion is not None
    assert first.completion.token_ids == second.completion.token_ids
