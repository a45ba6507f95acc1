"""Macs that are only claimed: what one of 8 GB gets, and that it serves."""

from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.machines import MAC_8, pretend

from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.runtime.growing_pool import GrowingPool
from tiny_llm_lab.runtime.memory import MemoryPressure
from tiny_llm_lab.serving import building, memory_keeper
from tiny_llm_lab.types import Prompt

GIB = 2**30
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
    pretend(monkeypatch, MAC_8, active=int(2.88 * GIB))  # this model's weights and those of other programs
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
        assert isinstance(pool, GrowingPool) and 12 <= pool.num_blocks < 39
        first, block = pool.num_stored, 16 * 288 * 2**10
        assert first == 1 and pool.nbytes == block
        for hits in (0, 4 * 2 * 16):
            assert [each.token_ids for each in llm.generate(PROMPTS)] == want
            assert core.prefix_cache.num_hit_tokens == hits
        most = pool.num_stored
        assert most >= 12 and stored == sorted(stored), "12 blocks run, others stay cached"
        percent[0], clock.now = 5, 10.0
        assert llm.generate(PROMPTS[:1])[0].token_ids == want[0]
        assert pool.num_stored == first and pool.nbytes == block
        percent[0], clock.now = 50, 20.0
        assert [each.token_ids for each in llm.generate(PROMPTS)] == want
        assert pool.num_stored == most
