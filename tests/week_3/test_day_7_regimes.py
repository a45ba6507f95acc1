"""Day 3.7: which of the two regimes a step belongs to, to the token."""

import pytest
from tests.helpers.step_samples import measured

pytestmark = pytest.mark.task("3.7.1")


@pytest.mark.parametrize(("beyond", "moved"), [(-1, "small"), (0, "small"), (1, "large")])
def test_a_step_of_exactly_split_tokens_is_a_small_one(llm, beyond, moved):
    model = llm.StepTimeModel(measured(llm), split_tokens=64)
    num_tokens = model.split_tokens + beyond
    before = {"small": model.small_correction, "large": model.large_correction}
    model.record(num_tokens, 0, 0, 1.9 * model.predict(num_tokens, 0))
    after = {"small": model.small_correction, "large": model.large_correction}
    assert [name for name in before if after[name] != before[name]] == [moved]
