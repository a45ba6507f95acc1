"""Macs that are only claimed: what one of 8 GB gets, and that it serves."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.machines import MAC_8, pretend

from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.runtime.growing_pool import GrowingPool
from tiny_llm_lab.runtime.kv_memory import engine_num_blocks
from tiny_llm_lab.runtime.memory import MemoryPressure
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.random.shapes import config_json, parse_shape
from tiny_llm_lab.serving import building, memory_keeper
from tiny_llm_lab.types import Prompt, SchedulerConfig

GIB = 2**30


def test_the_page_says_what_a_mac_of_8_gb_gets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "book/src/on-a-mac.md").read_text(encoding="utf-8")
    [row] = (line for line in page.splitlines() if line.startswith("| Qwen3-4B |"))
    (tmp_path / "config.json").write_text(json.dumps(config_json(parse_shape("qwen3-4b,bits=4"))))
    config, _ = read_config(tmp_path / "config.json")
    usable, weights = 8 * GIB * 2 // 3, 2_262_920_192
    pretend(monkeypatch, MAC_8 | {"max_recommended_working_set_size": usable}, active=weights)
    tokens = 16 * engine_num_blocks(config, mx.bfloat16, 16, SchedulerConfig())
    assert tokens == (usable - weights) // 2 // (144 * 2**10) // 16 * 16, "half of what is free"
    assert row.split(" | ")[1:3] == ["2.1 GiB", f"1,651 MiB: {tokens:,} tokens"]


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
