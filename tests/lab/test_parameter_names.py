"""How the parameters of a test are named: a learner reads them in the list of what failed."""

import mlx.core as mx
import pytest
from conftest import pytest_make_parametrize_id

NAMES = [
    (mx.bfloat16, "bfloat16"),
    ((2, 1, 5), "2x1x5"),
    ((), "empty"),
    ([63, 1], "63_1"),
    ({"temperature": 0.5, "seed": 3}, "temperature=0.5_seed=3"),
    (None, "None"),
    (list(range(50)), None),
    ("a text with spaces", None),
    (object(), None),
]


@pytest.mark.parametrize(("value", "name"), NAMES)
def test_a_parameter_has_a_name_that_can_be_read(value, name):
    assert pytest_make_parametrize_id(value) == name
