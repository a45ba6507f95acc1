"""The known mistakes still fit the kernels; mistakes.py tries them, which takes too long for here."""

from pathlib import Path

import pytest
from tests.kernels.mistakes import known_mistakes
from tests.kernels.sanitize import fuzz, fuzz_program

from tiny_llm_lab.runtime.native.compiling import isa
from tiny_llm_lab.runtime.native.compiling.build import NoCompilerError, build

MISTAKES = known_mistakes()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.says)
def test_a_mistake_can_be_made(mistake, tmp_path):
    right = mistake.source().read_text(encoding="utf-8")
    assert right.count(mistake.find) == 1, f"{mistake.file} changed: {mistake.find!r} must occur once"
    mistake.make(tmp_path)
    assert (tmp_path / mistake.file).read_text(encoding="utf-8") != right
    assert set(mistake.isas) <= {copy.name for copy in isa.ISAS}
    name, _, function = mistake.tests.partition("::")
    assert f"def {function}(" in (Path(__file__).parent / name).read_text(encoding="utf-8")


def test_a_mistake_is_tried_where_its_instruction_set_runs():
    by_isas = {mistake.isas: mistake for mistake in MISTAKES}
    plain, either = by_isas["plain",], by_isas["avx512bf16", "neonbf16"]
    copies = {copy.name: copy for copy in isa.ISAS}
    assert plain.copy([copies["avx2"], copies["plain"]]) is copies["plain"]
    assert either.copy([copies["neonbf16"], copies["neon"]]) is copies["neonbf16"]
    assert either.copy([copies["avx2"], copies["plain"]]) is None


def test_every_kernel_has_one():
    files = {mistake.file for mistake in MISTAKES}
    assert files.issuperset("linear.cpp attention.cpp elementwise.cpp draw.cpp simd.h".split())


# A short run of the fuzz driver; `check` runs the one for threads, CONTRIBUTING.md names the long one


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
