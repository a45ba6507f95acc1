"""The plan of an engine's memory, at the sizes that people publish and run; nothing is loaded."""

import json
import os
import random
import sys
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import pytest
from tests.helpers.processes import finished

from tiny_llm_lab.measure.fit.models import GIB, claimed_mac, model_called
from tiny_llm_lab.runtime.memory import DeviceMemory
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.serving.memory_plan import ChunkBound, Planned, plan_memory
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.types import SchedulerConfig, UserError
from tiny_llm_ref.cache.block_pool import BlockPool
from tiny_llm_ref.cache.prefix_cache import PrefixCache
from tiny_llm_ref.cache.snapshots import StateSnapshots
from tiny_llm_ref.engine.scheduler import Scheduler
from tiny_llm_ref.engine.sequence import TokenSequence
from tiny_llm_ref.engine.sequence_states import SequenceStates

MACS: Final = (8, 16, 18, 24, 32, 36, 48, 64, 96, 128)
MODELS: Final = (
    *("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b"),
    *("qwen3.5-0.8b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b", "qwen3-next-80b-a3b"),
)
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "mtp": {"speculate": "mtp"},
    "int8": {"kv_cache_dtype": "int8"},
    "32k": {"length": 32_768},
    "64k": {"length": 65_536},
    "131k": {"length": 131_072},
    "no prefix cache": {"enable_prefix_caching": False},
    "no states for snapshots": {"state_cache_memory": "0.01"},
}
CONFIG: Final = SchedulerConfig(max_num_batched_tokens=512)


def planned(name, length=None, **settings):
    model = model_called(f"random:{name},bits=4")
    own = EngineSettings(CONFIG, **settings)
    has_drafts = own.speculate != "off"
    return Planned(model.config, mx.bfloat16, own, length, model.weights, has_drafts=has_drafts)


def plan_of(name, mac, **settings):
    return plan_memory(planned(name, **settings), claimed_mac(mac * GIB))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_serves_within_the_memory_or_says_what_would(name, settings):
    """On each Mac; more memory never gives less."""
    best = -1
    for mac in MACS:
        asked, here = planned(name, **SETTINGS[settings]), claimed_mac(mac * GIB)
        limit = asked.config.max_position_embeddings
        if asked.length and asked.length > limit:
            continue  # refused by the model's own limit
        try:
            plan = plan_memory(asked, here)
        except UserError as error:
            assert best < 0, f"{mac} GB refuse what fewer serve"
            check_refusal(str(error), asked, here)
            continue
        assert plan.total <= here.free
        assert best <= plan.max_model_len <= min(limit, plan.num_blocks * plan.block_size)
        assert plan.max_model_len == asked.length or asked.length is None
        best = plan.max_model_len
        if asked.config.hybrid:
            assert plan.num_states >= 1 + asked.has_drafts + asked.settings.enable_prefix_caching
            running = asked.num_seqs * (2 if asked.has_drafts else 1)
            assert plan.num_states <= running or asked.settings.enable_prefix_caching
        else:
            assert plan.num_states == 0


def check_refusal(message, asked, here):
    """One line; the length that it says would fit does, and one block more does not."""
    assert "\n" not in message
    if message.startswith("the weights need"):
        assert asked.weights > here.free
        return
    if "nothing is left for keys and values" in message:
        assert asked.weights <= here.free, "else they are named alone"
        return
    if "--max-model-len " in message:
        fits = int(message.split("--max-model-len ")[1].split(" ")[0])
        assert fits < (asked.length or 0)
        assert plan_memory(replace(asked, length=fits), here).max_model_len == fits
        with pytest.raises(UserError):
            plan_memory(replace(asked, length=fits + asked.settings.block_size), here)
    if asked.settings.kv_bits is None:
        assert "--kv-cache-dtype int8" in message
    assert ("leave out --speculate" in message) == asked.has_drafts


def test_the_models_that_were_refused_everywhere_serve_by_default():
    """On the Macs that people run them on: the prompt of a coding tool, and a few streams."""
    for name, mac in (("qwen3.5-9b", 16), ("qwen3.5-27b", 32), ("qwen3.5-35b-a3b", 32), ("qwen3-32b", 36)):
        plan = plan_of(name, mac)
        assert plan.max_model_len >= 24_500, name
        assert plan.num_streams(8192) >= 3, name
    assert plan_of("qwen3.5-27b", 32, speculate="mtp").max_model_len >= 32_768
    cpu = DeviceMemory(24 * GIB, 24 * GIB, 18 * GIB)
    for name in ("qwen3.5-0.8b", "qwen3.5-4b", "qwen3.5-9b"):
        assert plan_memory(planned(name), cpu).max_model_len >= 32_768, "on a CPU"


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("qwen3.5")])
def test_blocks_have_room_for_the_layer_that_drafts(name):
    """Its keys and values have the blocks of the model's: one layer with attention more."""
    plain, asked = planned(name), planned(name, speculate="mtp")
    layers = plain.config.num_kv_layers
    assert asked.block_bytes * layers == plain.block_bytes * (layers + 1)
    with_it, without = (plan_memory(each, claimed_mac(64 * GIB)) for each in (asked, plain))
    assert with_it.num_blocks * asked.block_bytes <= with_it.total
    assert with_it.num_blocks <= without.num_blocks


def test_ten_turns_of_a_coding_tool_find_each_other():
    """24,000 tokens and 500 more a turn: blocks for all, and a snapshot every so many tokens of the last."""
    for name, mac in (("qwen3.5-9b", 16), ("qwen3.5-27b", 36), ("qwen3.5-35b-a3b", 36)):
        plan = plan_of(name, mac)
        assert plan.num_blocks * plan.block_size >= 24_000 + 10 * 500, name
        assert plan.num_states > 29_000 // plan.snapshot_every + 1, name


def ten_turns(scheduler):
    """Client 0 has a conversation: 24,000 tokens, 200 out and 300 new. Others send 2,000 to 8,000 new."""
    draw, turns, live = random.Random(1), list[TokenSequence](), dict[str, TokenSequence]()
    text, begins = draw.choices(range(9000), k=24_000), dict.fromkeys("01234", 0)
    for step in count():
        for client in [each for each, begin in begins.items() if begin == step]:
            new = text if client == "0" else draw.choices(range(9000), k=draw.randint(2000, 8000))
            live[client] = TokenSequence(client, new)
            scheduler.add(live[client])
        plan = scheduler.schedule()
        drawn = [name for name, count in plan.num_scheduled_tokens.items() if live[name].needs_sample(count)]
        scheduler.commit(plan, {name: [draw.randrange(9000)] for name in drawn})
        for client in drawn:
            num_tokens, longest_pause = (200, 20) if client == "0" else (100, 100)
            if len(live[client].output_token_ids) == num_tokens:
                scheduler.finish(client)
                begins[client] = step + draw.randint(1, longest_pause)
                turns += [live[client]] if client == "0" else []
                text = turns[-1].token_ids + draw.choices(range(9000), k=300) if client == "0" else text
        if len(turns) == 10:
            break
    return turns


def test_ten_turns_find_each_other_while_others_come_and_go():
    """With room for a conversation and what 4 others have at a time: all but a part of a block is found."""
    plan = plan_of("qwen3.5-9b,layers=4", 24, length=30_000, kv_cache_memory="400M")
    snapshots, pool = StateSnapshots(plan.num_states, plan.snapshot_every), BlockPool(plan.num_blocks)
    cache = PrefixCache(pool, snapshots=snapshots)
    config = replace(CONFIG, max_model_len=plan.max_model_len)
    turns = ten_turns(Scheduler(config, pool, cache, SequenceStates(snapshots)))
    for before, turn in pairwise(turns):
        assert before.num_tokens - pool.block_size <= turn.num_cached_tokens < before.num_tokens
    assert snapshots.num_evicted > 100, "others press"


def test_what_is_asked_for_is_what_there_is():
    """Amounts in flags are those of blocks and states together."""
    for amount, size in (("2G", 2 * GIB), ("0.25", None)):
        plan = plan_of("qwen3.5-9b", 24, kv_cache_memory=amount)
        room = size or (claimed_mac(24 * GIB).free - model_called("random:qwen3.5-9b,bits=4").weights) // 4
        assert room - plan.block_bytes - plan.state_bytes < plan.pool + plan.states <= room
    plan = plan_of("qwen3.5-9b", 24, kv_cache_memory="2G", state_cache_memory="512M")
    assert 2**29 - plan.state_bytes < plan.states <= 2**29
    with pytest.raises(UserError, match=r"^--state-cache-memory is 2.0 GiB of 2.0 GiB for blocks and states"):
        plan_of("qwen3.5-9b", 24, kv_cache_memory="2G", state_cache_memory="2G")
    with pytest.raises(UserError, match=r"this process need .* are free: choose a smaller --kv-cache-m"):
        plan_of("qwen3-8b", 16, kv_cache_memory="8G")


def test_no_array_is_larger_than_the_device_takes():
    here = replace(claimed_mac(64 * GIB), largest_array=2**24)
    plan = plan_memory(planned("qwen3-0.6b"), here)
    assert plan.num_blocks == 2**24 // (8 * 128 * 2 * 16)
    with pytest.raises(UserError, match="need an array of"):
        plan_memory(planned("qwen3-0.6b", kv_cache_memory="8G"), here)


def test_no_more_is_taken_than_requests_can_use():
    asked = replace(planned("qwen3-0.6b", length=1000), num_requests=2)
    assert plan_memory(asked, claimed_mac(64 * GIB)).num_blocks == 2 * 63
    few = replace(planned("qwen3.5-9b", length=1000, enable_prefix_caching=False), num_requests=3)
    assert plan_memory(few, claimed_mac(64 * GIB)).num_states == 3
    whole = replace(CONFIG, enable_chunked_prefill=False, max_num_batched_tokens=4096)
    asked = planned("qwen3-0.6b")
    asked = replace(asked, settings=replace(asked.settings, config=whole))
    assert plan_memory(asked, claimed_mac(64 * GIB)).max_model_len == 4096, "a prompt is one step"


class Text:
    """A request in a queue."""

    def __init__(self, num_tokens, num_computed_tokens):
        self.num_tokens, self.num_computed_tokens = num_tokens, num_computed_tokens


class Queue:
    def __init__(self, running, waiting):
        self.running, self.waiting = running, waiting


@pytest.mark.parametrize("name", ["qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b"])
@pytest.mark.parametrize("mac", [16, 32, 128])
def test_a_step_whose_scores_would_not_fit_is_never_tried(name, mac):
    """Heads x rows x stored tokens: below the plan's amount, or 16 rows; whole steps after short texts."""
    asked = planned(name)
    asked = replace(
        asked, settings=replace(asked.settings, config=replace(CONFIG, max_num_batched_tokens=2048))
    )
    try:
        plan = plan_memory(asked, claimed_mac(mac * GIB))
    except UserError:
        assert mac < 32
        return
    bound = ChunkBound(plan, asked, None)
    longest = plan.max_model_len
    assert bound.token_budget(0.0, Queue([Text(4000, 0)], []), lambda _: 0.0) == 2048
    for stored in (8192, 32_768, longest - 2048):
        rows = bound.token_budget(0.0, Queue([Text(longest, stored)], []), lambda _: 0.0)
        assert rows is not None and rows >= 16
        end = min(longest, stored + rows)
        assert asked.config.num_attention_heads * rows * end * 4 <= plan.scores
        waiting = bound.token_budget(0.0, Queue([], [Text(stored + 2048, 0)]), lambda _: 0.0)
        assert waiting == rows, "it may find all of its text in the prefix cache"
    assert plan_of("qwen3-8b", mac).scores == 0, "MLX's kernel of 128 dimensions keeps none"


# The peak is counted from the plan on: loading has one matrix twice, and ends before. With a limit a process
# may then have the plan and 15 % more of private writable memory, beyond what it has reserved and not used by
# then, such as stacks of threads. RLIMIT_DATA counts that. RLIMIT_AS also counts what nobody can write: files
# of libraries, and the 64 MiB that glibc sets aside for the heap of each thread.
PROGRAM: Final = """
import json, random, resource, sys
from pathlib import Path
from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.measure.fit.models import model_called
from tiny_llm_lab.serving import building
from tiny_llm_lab.types import Prompt, SchedulerConfig

def told(name):
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[name].split()[0])

def begin(planned, here):
    plan = plan_memory(planned, here)
    total.append(plan.total + model_called(model).weights)
    if has_limit:
        limit = int(1.15 * total[0]) + told("VmData") - told("VmRSS")
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM is counted anew
    return plan

model, settings, num_requests, has_limit = json.loads(sys.argv[1])
total, plan_memory = [], building.plan_memory
building.plan_memory = begin
config = SchedulerConfig(max_num_batched_tokens=256, max_model_len=512)
with LLM(model, config=config, **settings) as llm:
    draw, sampling = random.Random(1), SamplingParams(max_tokens=6, ignore_eos=True)
    prompts = [[draw.randrange(9000) for _ in range(draw.randint(20, 300))] for _ in range(num_requests)]
    answers = llm.generate([Prompt(prompt, sampling) for prompt in prompts])
    pool = llm.engine.core.kv_cache
    print(json.dumps([total[0], told("VmHWM"), pool.num_stored / pool.num_blocks,
                      [list(each.token_ids) for each in answers]]))
"""


def run_at_real_widths(name, settings, num_requests, has_limit=False):
    """The plan in bytes, the peak, the part of the blocks that was used, and the tokens of all answers."""
    find_folder(name)  # made by another process, so that its memory does not count
    ran = finished(
        [sys.executable, "-c", PROGRAM, json.dumps([name, settings, num_requests, has_limit])],
        env=os.environ | {"TINY_LLM_KERNELS": "auto"},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


# Blocks for about 3,000 tokens, and states with a snapshot after each 128, so that a short run fills both.
FILLED: Final[dict[str, str | int]] = {"state_cache_memory": "170M", "state_cache_interval": 128}
tells_peaks = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak there")


REAL_WIDTHS = [
    ("qwen3.5-9b,layers=4,bits=4", {"kv_cache_memory": "182M"}),
    ("qwen3.5-9b,layers=4,bits=4,mtp=1", {"kv_cache_memory": "194M", "speculate": "mtp"}),
    ("qwen3.5-27b,layers=4,bits=4", {"kv_cache_memory": "182M", "speculate": "ngram"}),
    ("qwen3.5-35b-a3b,layers=4,bits=4", {"kv_cache_memory": "176M"}),
]


@pytest.mark.long
@tells_peaks
@pytest.mark.parametrize(("name", "settings"), REAL_WIDTHS)
def test_a_process_stays_within_its_plan_at_real_widths(name, settings):
    """And needs nine tenths of it, once its pool is full."""
    plan, peak, filled, _ = run_at_real_widths(f"random:{name}", FILLED | settings, 28)
    assert filled == 1
    assert 0.9 * plan < peak <= plan, f"{peak / plan:.3f} of the plan"


BOUNDED = [
    ("qwen3.5-35b-a3b,layers=4,bits=4", {"kv_cache_memory": "176M"}),
    ("qwen3.5-27b,layers=4,bits=4", {"kv_cache_memory": "182M", "speculate": "ngram"}),
]


@pytest.mark.long
@tells_peaks
@pytest.mark.parametrize(("name", "settings"), BOUNDED)
def test_a_process_that_cannot_have_more_than_its_plan_answers_all_the_same(name, settings):
    """32 requests with and without a limit of memory."""
    _, _, _, answers = run_at_real_widths(f"random:{name}", FILLED | settings, 32, has_limit=True)
    assert answers == run_at_real_widths(f"random:{name}", FILLED | settings, 32)[3]
    assert [len(each) for each in answers] == [6] * 32
