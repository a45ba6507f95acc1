"""When a GPU's self-tests run, what is said meanwhile, and that a crash turns off one operator."""

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.paging import Requests
from tests.helpers.some_gpu import REF

from tiny_llm_lab.runtime.native.device import fused_checks
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.runtime import Runtime

ROOT = Path(__file__).parents[2]
# "causal" ends the process, as an error on a GPU can.
CRASHES = """
import os, sys
from pathlib import Path
import mlx.core as mx
import pytest
from tests.helpers.some_gpu import REF, SomeGpu
from tiny_llm_lab.runtime.native.runtime import Runtime

patch = pytest.MonkeyPatch()
gpu = SomeGpu(patch, Path(sys.argv[1]))
real = mx.fast.scaled_dot_product_attention

def crash(*arrays, **options):
    if isinstance(options["mask"], str):
        os._exit(9)
    return real(*arrays, **options)

patch.setattr(mx.fast, "scaled_dot_product_attention", crash)
ops = Runtime(gpu.clock).kernels(REF, {})
print(type(ops).__name__, ops._masks)
"""


def test_a_crash_turns_off_the_operator_that_crashed(tmp_path):
    command = [sys.executable, "-c", CRASHES, str(tmp_path)]
    first, second = (subprocess.run(command, cwd=ROOT, capture_output=True, text=True) for _ in "12")
    assert first.returncode == 9, first.stderr
    assert second.stdout == "MlxOps True\n", second.stderr
    [testing, wrong] = second.stderr.splitlines()
    assert testing.startswith("testing "), "what had not been tried is tried"
    assert f"{fused_checks.CAUSAL}: crashed its test's process: so models use arrays as masks;" in wrong


@pytest.mark.usefixtures("sound")
def test_the_kernel_for_blocks_is_tested_when_a_step_has_some(gpu, llm, monkeypatch, capfd):
    monkeypatch.setattr("tiny_llm_ref.kernels.metal.paged_attention_metal", gpu.kernel())
    ops = Runtime(gpu.clock).kernels(REF, {})
    assert isinstance(ops, MlxOps)
    assert REF not in capfd.readouterr().err
    step = Requests(llm, [7], [1], 16, D=64)
    keys, values = (mx.nan_to_num(pool) for pool in (step.keys, step.values))
    at = step.layout
    for said in (2, 0):
        ops.paged_attention(
            *(step.new_q, keys, values, at.query_starts, at.lengths, at.block_tables),
            step.new_q.shape[-1] ** -0.5,
        )
        assert capfd.readouterr().err.count(f"paged_attention_metal of {REF}") == said
