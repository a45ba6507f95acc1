"""The claim of results/gather-error.json: on a CPU, gathered products are for float32."""

import pytest
from tests.helpers.gather_error import BITS, DTYPES, case, error, main


@pytest.mark.parametrize("bits", [None, *BITS])
def test_float32_is_kept_and_16_bits_are_not(bits):
    found = {name: error(bits, dtype, seed=0) for name, dtype in DTYPES.items()}
    exact, half, brain = found["float32"], found["float16"], found["bfloat16"]
    assert exact is not None
    assert 0 < exact < 1e-6
    if bits is None:
        assert (half, brain) == (None, None), "a CPU that takes them now: measure again, and say so in 3.9"
    else:
        assert half is not None
        assert brain is not None
        assert 2**-11 < half < brain < 0.05


def test_each_operator_and_dtype_is_told(capsys):
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"{case(bits)}, {name}" for bits in (None, *BITS) for name in DTYPES
    ]
    assert lines[1] == "gather_mm, float16: refused"
