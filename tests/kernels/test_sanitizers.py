"""A short run of the fuzz driver; `check` runs the one for threads, CONTRIBUTING.md names the long one."""

import pytest
from tests.kernels.sanitize import fuzz, fuzz_program

from tiny_llm_lab.runtime.native.compiling import isa
from tiny_llm_lab.runtime.native.compiling.build import NoCompilerError, build


@pytest.mark.long  # compiling with sanitizers takes minutes
@pytest.mark.parametrize(
    "copy",
    {copy.name: copy for copy in (isa.available()[0], isa.ISAS[-1])}.values(),
    ids=lambda copy: copy.name,
)
def test_memory_and_arithmetic_of_random_calls(copy):
    try:
        program = build(fuzz_program(copy, "address"))
    except NoCompilerError as error:
        pytest.fail(f"the kernels are not tested: {error}", pytrace=False)
    done = fuzz(program, seed=1, calls=300)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
