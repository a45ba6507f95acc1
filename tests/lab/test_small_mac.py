"""Macs that are only claimed: the table of what each gets, and one of 8 GB that serves."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.machines import MAC_8, pretend

from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.course.book.macs import claimed_mac, macs_table, model_of
from tiny_llm_lab.runtime.growing_pool import GrowingPool
from tiny_llm_lab.runtime.kv_memory import engine_num_blocks
from tiny_llm_lab.runtime.memory import device_memory
from tiny_llm_lab.runtime.memory_pressure import MemoryPressure
from tiny_llm_lab.runtime.models.random.random_checkpoint import find_or_make
from tiny_llm_lab.serving import building, memory_keeper
from tiny_llm_lab.types import Prompt, SchedulerConfig

GIB = 2**30


def test_the_table_is_what_a_claimed_mac_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [line.strip("| ").split(" | ") for line in macs_table().splitlines()]
    assert cells[0] == ["4 bits", "weights", "8 GB", "16 GB", "32 GB", "64 GB", "128 GB"]
    found = {(row[0], memory): cell for row in cells[2:] for memory, cell in zip(cells[0], row, strict=True)}
    assert found["Qwen3-4B", "weights"] == "2.1 GiB"
    assert [found["Qwen3-14B", memory] == "does not fit" for memory in cells[0][2:]] == [True, *[False] * 4]
    fits = [found["Qwen3-32B", memory] != "does not fit" for memory in cells[0][2:]]
    assert fits == [False, False, True, True, True]
    # Half of 8 * 2 / 3 GiB without the weights, for tokens of 144 KiB; 64 GB are bounded by 4 GiB.
    config, weights = model_of("qwen3-4b,bits=4")
    pool = (8 * GIB * 2 // 3 - weights) // 2
    assert found["Qwen3-4B", "8 GB"] == f"{pool // 2**20:,} MiB: {pool // (144 * 2**10) // 16 * 16:,} tokens"
    assert found["Qwen3-4B", "64 GB"] == "4,095 MiB: 29,120 tokens"
    pretend(monkeypatch, MAC_8 | {"max_recommended_working_set_size": 8 * GIB * 2 // 3}, active=weights)
    assert claimed_mac(8, weights).free == device_memory().free
    count = engine_num_blocks(config, mx.bfloat16, 16, SchedulerConfig())
    assert f" {count * 16:,} tokens" in found["Qwen3-4B", "8 GB"]


def test_weights_are_counted_as_they_are_stored() -> None:
    stored = find_or_make("qwen3-shrunk,bits=4") / "model.safetensors"
    header = 8 + int.from_bytes(stored.read_bytes()[:8], "little")
    assert model_of("qwen3-shrunk,bits=4")[1] == stored.stat().st_size - header


@pytest.mark.parametrize("page", ["docs/devices.md", "book/src/on-a-mac.md"])
def test_the_table_is_in_the_docs(page: str) -> None:
    assert macs_table() in (Path(__file__).parents[2] / page).read_text(encoding="utf-8")


# Keys and values as of Qwen3-4B, 288 KiB a token in float32; small matrices.
SERVED = "random:qwen3-4b,hidden=64,heads=8,inner=64,vocab=259,bits=32"
PROMPTS = [
    Prompt([(7 * i + j) % 250 for j in range(40)], SamplingParams(max_tokens=3, ignore_eos=True))
    for i in range(4)
]


@pytest.mark.long
def test_a_mac_of_8_gb_serves_from_a_pool_that_grows_and_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_LLM_KERNELS", "mlx")
    with LLM(SERVED, kv_cache_memory="64M") as whole:
        want = [each.token_ids for each in whole.generate(PROMPTS)]
    pretend(monkeypatch, MAC_8, active=int(4.95 * GIB))  # this model's weights and those of other programs
    monkeypatch.setattr(mx, "set_wired_limit", lambda limit: 0)
    monkeypatch.setattr(mx, "set_cache_limit", lambda limit: 0)
    monkeypatch.setattr(building, "step_budget", lambda *model: 512)
    percent, clock = [50], FakeClock()
    pressure = MemoryPressure(lambda: percent[0], clock)
    monkeypatch.setattr(memory_keeper, "memory_pressure", lambda: pressure)
    stored: list[int] = []
    with LLM(SERVED, on_step=lambda plan, stats: stored.append(pool.num_stored)) as llm:
        core: Any = llm.engine.core
        pool = core.kv_cache
        assert isinstance(pool, GrowingPool) and pool.num_blocks == 39
        eighth, block = pool.num_stored, 16 * 288 * 2**10
        assert eighth == 5 and pool.nbytes == eighth * block
        for hits in (0, 4 * 2 * 16):
            assert [each.token_ids for each in llm.generate(PROMPTS)] == want
            assert core.prefix_cache.num_hit_tokens == hits
        assert pool.num_stored == 15 and stored == sorted(stored), "12 blocks run, 8 others stay cached"
        percent[0], clock.now = 5, 10.0
        assert llm.generate(PROMPTS[:1])[0].token_ids == want[0]
        assert pool.num_stored == eighth and pool.nbytes == eighth * block
        percent[0], clock.now = 50, 20.0
        assert [each.token_ids for each in llm.generate(PROMPTS)] == want
        assert pool.num_stored > eighth
