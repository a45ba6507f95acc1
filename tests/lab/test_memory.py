"""The memory of other machines, as MLX tells it: limits that follow it, and caches that are refused."""

from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.machines import CUDA_80, MAC_8, MAC_16, MAC_64, pretend
from tests.helpers.toy import QWEN3, toy_model

import tiny_llm_ref
from tiny_llm_lab import LLM, load_checkpoint
from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.runtime import memory
from tiny_llm_lab.runtime.console.talk import EXIT_USAGE
from tiny_llm_lab.runtime.kv_memory import block_bytes, parse_memory
from tiny_llm_lab.serving import building
from tiny_llm_lab.types import UserError

GIB = 2**30


@pytest.fixture
def limits(monkeypatch):
    """What was set; nothing reaches MLX."""
    found: dict[str, int] = {}

    def note(name):
        return lambda value: found.update({name: value}) or 0

    monkeypatch.setattr(mx, "set_wired_limit", note("wired"))
    monkeypatch.setattr(mx, "set_cache_limit", note("cache"))
    return found


def test_there_is_memory_here():
    here = memory.device_memory()
    assert 2**20 < here.free <= here.usable == here.total < 2**50
    assert here.largest_array is None and not here.can_be_wired


@pytest.mark.parametrize("machine", [MAC_8, MAC_16, MAC_64])
def test_a_mac_uses_its_recommended_working_set(machine, limits, monkeypatch):
    pretend(monkeypatch, machine, active=GIB)
    total, working_set = machine["memory_size"], machine["max_recommended_working_set_size"]
    assert isinstance(total, int) and isinstance(working_set, int)
    usable = min(working_set, total - 5 * GIB)  # macOS and an editor have theirs
    assert memory.device_memory() == memory.DeviceMemory(
        total, usable, usable - GIB, machine["max_buffer_length"], True, is_gpu=True
    )
    memory.set_limits()
    assert limits == {"wired": min(usable, int(0.65 * total)), "cache": usable // 8}
    pretend(monkeypatch, machine, active=100 * GIB)
    assert memory.device_memory().free == 0


def test_a_cuda_gpu_may_be_shared_and_is_never_wired(limits, monkeypatch):
    pretend(monkeypatch, CUDA_80, active=2 * GIB, cached=3 * GIB)
    assert memory.device_memory() == memory.DeviceMemory(80 * GIB, 80 * GIB, 73 * GIB, is_gpu=True)
    memory.set_limits()
    assert limits == {"cache": 10 * GIB}


def test_a_gpu_that_tells_nothing_has_the_memory_of_the_machine(monkeypatch):
    pretend(monkeypatch, {"device_name": "some GPU"})
    assert memory.device_memory().total == memory._physical_bytes()


def test_a_cpu_keeps_the_limits_of_mlx(limits):
    load_checkpoint()
    assert limits == {}


def test_loading_a_model_sets_the_limits_once_the_weights_fit(limits, monkeypatch):
    pretend(monkeypatch, MAC_16)
    load_checkpoint()
    assert set(limits) == {"wired", "cache"}
    limits.clear()
    pretend(monkeypatch, MAC_16 | {"max_recommended_working_set_size": 2**20})
    with pytest.raises(UserError, match=r"of default need 8.3 MiB and 1.0 MiB are free: .* a 4-bit"):
        load_checkpoint()
    assert limits == {}


def test_an_engine_keeps_as_many_freed_buffers_as_its_steps_use(limits, monkeypatch):
    memory.set_limits(10)
    assert limits == {}, "a CPU keeps the limits of mlx"
    pretend(monkeypatch, MAC_16)
    memory.set_limits(10)
    assert limits["cache"] == 10
    memory.set_limits(100 * GIB)
    assert limits["cache"] == memory.device_memory().usable // 8


def test_without_linux_the_whole_memory_counts_less_what_mlx_has(monkeypatch):
    monkeypatch.setattr(memory, "Path", lambda _: Path("/no/such/file"))
    monkeypatch.setattr(mx, "get_active_memory", lambda: GIB)
    here = memory.device_memory()
    assert here.free == here.total - GIB


def test_what_does_not_fit_is_one_line_with_the_cure(monkeypatch):
    pretend(monkeypatch, MAC_8, active=GIB)
    free = memory.device_memory().free
    memory.require_fit("the blocks", free, MAC_8["max_buffer_length"], "take less")
    with pytest.raises(UserError, match=r"^the blocks need 2.0 GiB and 2.0 GiB are free: take less$"):
        memory.require_fit("the blocks", free + 1, 1, "take less")
    with pytest.raises(UserError, match=r"need an array of 4.0 GiB and this GPU takes at most 4.0 GiB"):
        memory.require_fit("the blocks", free, MAC_8["max_buffer_length"] + 1, "take less")


def test_auto_is_what_a_model_may_have(monkeypatch):
    """On a Mac all that is usable, because others have theirs already; elsewhere a share of what is free."""
    for machine, share in ((MAC_16, 1.0), (MAC_64, 1.0), (CUDA_80, 0.9)):
        pretend(monkeypatch, machine, active=4 * GIB)
        free = memory.device_memory().free
        assert (parse_memory("auto"), parse_memory("0.25")) == (int(share * free), free // 4)
    assert parse_memory("auto", memory.DeviceMemory(GIB, GIB, 1000)) == 500


AMOUNTS = [
    ("512M", 2**29),
    ("2G", 2**31),
    ("1.5g", 3 * 2**29),
    ("64KiB", 2**16),
    ("4096", 4096),
    ("0.5", 500),
]


@pytest.mark.parametrize(("text", "num_bytes"), AMOUNTS)
def test_amounts(text, num_bytes):
    assert parse_memory(text, memory.DeviceMemory(2000, 2000, 1000)) == num_bytes


@pytest.mark.parametrize("text", ["", "much", "-1G", "1GG", "0x10", "5%", "nan"])
def test_what_is_no_amount(text):
    with pytest.raises(UserError, match=r"write 512M, 2G, or 0\.5"):
        parse_memory(text)


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_a_block_is_as_large_as_its_part_of_a_cache(kv_bits):
    cache = toy_model(tiny_llm_ref).create_paged_kv_cache(7, 8, kv_bits)
    assert cache.nbytes == 7 * block_bytes(QWEN3, mx.float32, 8, kv_bits)
    # 2 (keys, values) * 2 layers * 2 kv heads * 24 numbers * 16 tokens * 4 bytes
    assert block_bytes(QWEN3, mx.float32, 16) == 2 * block_bytes(QWEN3, mx.bfloat16, 16) == 12_288


SMALL_GPU = MAC_8 | {"max_recommended_working_set_size": 16 * 2**20}


def test_an_engine_that_cannot_fit_is_refused_before_it_is_built(limits, monkeypatch):
    pretend(monkeypatch, SMALL_GPU)
    monkeypatch.setattr(building, "step_budget", lambda *model: 512)
    monkeypatch.setattr(tiny_llm_ref, "Engine", lambda *_, **__: pytest.fail("the pool was allocated"))
    with pytest.raises(
        UserError,
        match=r"^8192 blocks of 16 tokens, a step and this process need 7.*MiB and 16.0 MiB are free",
    ):
        LLM(kv_cache_memory="512M")


TOO_LARGE = [
    (["main", "--max-tokens", "4000"], "choose a smaller --max-tokens"),
    (["batch-main", "--batch-size", "7"], "choose a smaller --batch-size or --max-seq-len"),
    (["batch-main", "--engine", "--kv-cache-memory", "1G"], "choose a smaller --kv-cache-memory"),
]


@pytest.mark.parametrize(("argv", "said"), TOO_LARGE)
def test_commands_refuse_a_cache_that_cannot_fit(
    argv,
    said,
    limits,
    monkeypatch,
    capsys,
):
    pretend(monkeypatch, SMALL_GPU, active=4 * 2**20)
    assert main(argv) == EXIT_USAGE
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ") and said in last, last


def test_readable():
    assert [memory.readable(n) for n in (5, 2048, 1.5 * 2**20, 2**33, 2**43)] == [
        "5 B", "2.0 KiB", "1.5 MiB", "8.0 GiB", "8192.0 GiB",
    ]  # fmt: skip
