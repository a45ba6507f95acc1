"""The memory of other machines, as MLX tells it: limits that follow it, and caches that are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.machines import CUDA_80, MAC_8, MAC_16, MAC_64, pretend
from tests.helpers.toy import QWEN3

import tiny_llm_ref
from tiny_llm_lab import LLM, load_checkpoint
from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.runtime import kv_memory, memory
from tiny_llm_lab.runtime.console.talk import EXIT_USAGE
from tiny_llm_lab.runtime.kv_memory import block_bytes, engine_num_blocks, num_blocks_for, parse_memory
from tiny_llm_lab.runtime.memory import DeviceMemory, device_memory, readable, require_fit, set_limits
from tiny_llm_lab.serving import building
from tiny_llm_lab.types import SchedulerConfig, UserError

GIB = 2**30
MANY = SchedulerConfig(max_num_batched_tokens=4096, max_num_seqs=4096, max_model_len=2**20)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What was set; nothing reaches MLX."""
    found: dict[str, int] = {}

    def note(name: str) -> Callable[[int], int]:
        return lambda value: found.update({name: value}) or 0

    monkeypatch.setattr(mx, "set_wired_limit", note("wired"))
    monkeypatch.setattr(mx, "set_cache_limit", note("cache"))
    return found


def test_there_is_memory_here() -> None:
    here = device_memory()
    assert 2**20 < here.free <= here.usable == here.total < 2**50
    assert here.largest_array is None and not here.can_be_wired


@pytest.mark.parametrize("machine", [MAC_8, MAC_16, MAC_64])
def test_a_mac_uses_its_recommended_working_set(
    machine: dict[str, str | int], limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, machine, active=GIB)
    usable = machine["max_recommended_working_set_size"]
    assert isinstance(usable, int)
    assert device_memory() == DeviceMemory(
        machine["memory_size"], usable, usable - GIB, machine["max_buffer_length"], can_be_wired=True
    )
    set_limits()
    assert limits == {"wired": usable, "cache": usable // 8}
    pretend(monkeypatch, machine, active=100 * GIB)
    assert device_memory().free == 0


def test_a_cuda_gpu_may_be_shared_and_is_never_wired(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, CUDA_80, active=2 * GIB, cached=3 * GIB)
    assert device_memory() == DeviceMemory(80 * GIB, 80 * GIB, 73 * GIB)
    set_limits()
    assert limits == {"cache": 10 * GIB}


def test_a_gpu_that_tells_nothing_has_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"device_name": "some GPU"})
    assert device_memory().total == memory._physical_bytes()


def test_a_cpu_keeps_the_limits_of_mlx(limits: dict[str, int]) -> None:
    load_checkpoint()
    assert limits == {}


def test_loading_a_model_sets_the_limits_once_the_weights_fit(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, MAC_16)
    load_checkpoint()
    assert set(limits) == {"wired", "cache"}
    limits.clear()
    pretend(monkeypatch, MAC_16 | {"max_recommended_working_set_size": 2**20})
    with pytest.raises(UserError, match=r"of default need 8.3 MiB and 1.0 MiB are free: .* a 4-bit"):
        load_checkpoint()
    assert limits == {}


def test_without_linux_the_whole_memory_counts_less_what_mlx_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "Path", lambda _: Path("/no/such/file"))
    monkeypatch.setattr(mx, "get_active_memory", lambda: GIB)
    here = device_memory()
    assert here.free == here.total - GIB


def test_what_does_not_fit_is_one_line_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, MAC_8, active=GIB)
    free = device_memory().free
    require_fit("the blocks", free, MAC_8["max_buffer_length"], "take less")
    with pytest.raises(UserError, match=r"^the blocks need 4.3 GiB and 4.3 GiB are free: take less$"):
        require_fit("the blocks", free + 1, 1, "take less")
    with pytest.raises(UserError, match=r"need an array of 4.0 GiB and this GPU takes at most 4.0 GiB"):
        require_fit("the blocks", free, MAC_8["max_buffer_length"] + 1, "take less")


def test_auto_is_half_of_what_is_free_after_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, MAC_16, active=4 * GIB)
    assert parse_memory("auto") == device_memory().free // 2 > GIB
    assert parse_memory("0.25") == device_memory().free // 4
    pretend(monkeypatch, MAC_64, active=4 * GIB)
    assert (parse_memory("auto"), parse_memory("0.5")) == (4 * GIB, 22 * GIB)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    for free, taken in ((GIB, GIB // 2), (100 * GIB, GIB)):
        here = DeviceMemory(free, free, free)
        monkeypatch.setattr(kv_memory, "device_memory", lambda here=here: here)
        assert parse_memory("auto") == taken


# A block of 1 MiB, and one of 64 KiB.
LARGE = replace(QWEN3, num_hidden_layers=32, num_key_value_heads=8, head_dim=64)
SMALL = replace(LARGE, num_hidden_layers=2)


def test_the_pool_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {}
    for machine in (MAC_8, MAC_16, MAC_64, CUDA_80):
        pretend(monkeypatch, machine, active=3 * GIB)
        half = num_blocks_for(LARGE, mx.bfloat16, 16, device_memory().free // 2)
        counts[half] = engine_num_blocks(LARGE, mx.bfloat16, 16, MANY)
    assert list(counts) == sorted(counts)
    assert [*counts.values()] == [*list(counts)[:2], 4096, [*counts][3]]


@pytest.mark.parametrize(
    ("longest", "amount", "count"),
    [(4096, "auto", 4096), (100_000, "auto", 6250), (4096, "1G", 16_384), (4096, "0.5", 16_384)],
)
def test_a_mac_gives_what_64k_tokens_need_unless_told(
    longest: int, amount: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, MAC_64)
    config = SchedulerConfig(max_num_seqs=64, max_model_len=longest)
    assert engine_num_blocks(SMALL, mx.bfloat16, 16, config, amount) == count


def test_a_pool_above_the_largest_buffer_is_made_smaller_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # A pool array of this model has a quarter of a block: 1,536 bytes of the keys of one layer.
    pretend(monkeypatch, MAC_16 | {"max_buffer_length": 1536 * 1000 + 1})
    assert engine_num_blocks(QWEN3, mx.bfloat16, 16, MANY) == 1000
    one = block_bytes(QWEN3, mx.bfloat16, 16)
    assert engine_num_blocks(QWEN3, mx.bfloat16, 16, MANY, str(1000 * one)) == 1000
    with pytest.raises(UserError, match=r"^1001 blocks of 16 tokens need an array of 1.5 MiB.*-dtype"):
        engine_num_blocks(QWEN3, mx.bfloat16, 16, MANY, str(1001 * one))
    assert engine_num_blocks(QWEN3, mx.bfloat16, 16, MANY, str(1001 * one), kv_bits=8) == 1716


SMALL_GPU = MAC_8 | {"max_recommended_working_set_size": 16 * 2**20}


def test_an_engine_that_cannot_fit_is_refused_before_it_is_built(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, SMALL_GPU)
    monkeypatch.setattr(building, "step_budget", lambda *model: 512)
    monkeypatch.setattr(tiny_llm_ref, "Engine", lambda *_, **__: pytest.fail("the pool was allocated"))
    with pytest.raises(UserError, match=r"^8192 blocks of 16 tokens need 512.0 MiB and 16.0 MiB are free"):
        LLM(kv_cache_memory="512M")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["main", "--max-tokens", "4000"], "choose a smaller --max-tokens"),
        (["batch-main", "--batch-size", "7"], "choose a smaller --batch-size or --max-seq-len"),
        (["batch-main", "--engine", "--kv-cache-memory", "1G"], "choose a smaller --kv-cache-memory"),
    ],
)
def test_commands_refuse_a_cache_that_cannot_fit(
    argv: list[str],
    said: str,
    limits: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretend(monkeypatch, SMALL_GPU, active=4 * 2**20)
    assert main(argv) == EXIT_USAGE
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ") and said in last, last


def test_readable() -> None:
    assert [readable(n) for n in (5, 2048, 1.5 * 2**20, 2**33, 2**43)] == [
        "5 B", "2.0 KiB", "1.5 MiB", "8.0 GiB", "8192.0 GiB",
    ]  # fmt: skip
