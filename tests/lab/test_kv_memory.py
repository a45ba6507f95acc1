"""How much memory a block takes, how many fit, and how amounts are written."""

from dataclasses import replace

import mlx.core as mx
import pytest
from tests.helpers.toy import QWEN3, toy_model

import tiny_llm_ref
from tiny_llm_lab.runtime import kv_memory
from tiny_llm_lab.runtime.kv_memory import block_bytes, num_blocks_for, parse_memory
from tiny_llm_lab.runtime.memory import DeviceMemory
from tiny_llm_lab.types import UserError


def test_a_block_has_keys_and_values_of_every_layer() -> None:
    # 2 (keys, values) * 2 layers * 2 kv heads * 24 numbers * 16 tokens * 4 bytes
    assert block_bytes(QWEN3, mx.float32, 16) == 12_288
    assert block_bytes(QWEN3, mx.bfloat16, 16) == 6_144
    assert num_blocks_for(QWEN3, mx.float32, 16, 12_288 * 7 + 12_287) == 7


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_a_cache_of_so_many_blocks_has_that_size(kv_bits: int | None) -> None:
    num_blocks = num_blocks_for(QWEN3, mx.float32, 8, 2**20, kv_bits)
    cache = toy_model(tiny_llm_ref).create_paged_kv_cache(num_blocks, 8, kv_bits)
    assert 2**20 - block_bytes(QWEN3, mx.float32, 8, kv_bits) < cache.nbytes <= 2**20


def test_too_little_for_one_block_is_one_line_with_the_cure() -> None:
    with pytest.raises(
        UserError, match=r"32 tokens takes 24.0 KiB and the KV cache may use 1000 B: give it more"
    ):
        num_blocks_for(QWEN3, mx.float32, 32, 1000)
    with pytest.raises(UserError, match="block_size must be 1 or more"):
        num_blocks_for(QWEN3, mx.float32, 0, 1000)
    assert num_blocks_for(replace(QWEN3, num_hidden_layers=1), mx.float16, 1, 192) == 1


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("512M", 2**29), ("2G", 2**31), ("1.5g", 3 * 2**29), ("64KiB", 2**16), ("4096", 4096), ("0.5", 500)],
)
def test_amounts(text: str, num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_memory, "device_memory", lambda: DeviceMemory(2000, 2000, 1000))
    assert parse_memory(text) == num_bytes


@pytest.mark.parametrize("text", ["", "much", "-1G", "1GG", "0x10", "5%", "nan"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(UserError, match=r"write 512M, 2G, or 0\.5"):
        parse_memory(text)
