"""What tests of several folders need."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import mlx.core as mx
import pytest

# Before the first import of a helper: asserts in them show their values. `-p tests.helpers.…` was earlier.
if "tests.helpers" not in sys.modules:
    pytest.register_assert_rewrite("tests.helpers")
from tests.helpers.fakes import FakeCache
from tests.helpers.rank import Ranks

_LONGEST_ID = 40
# Of the many cases of these tests the quick suite runs every n-th, and --full runs all. No n divides the
# number of values of a test's inner parameters, so that each value has its turn.
_EVERY = {
    "kernels/test_bytes.py::test_nothing_but_the_rounding_is_lost": 3,
    "lab/models/test_baseline.py::test_completions_equal_those_of_the_reference": 4,
    "lab/models/test_hybrid_engine.py::test_answers_do_not_depend_on_the_schedule": 4,
    "lab/models/test_hybrid_parity.py::test_a_batch_answers_as_each_request_alone": 3,
    "lab/models/test_hybrid_parity.py::test_logits_equal_those_of_float64": 2,
    "lab/models/test_hybrid_parity.py::test_logits_equal_those_of_transformers_however_the_prompt_is_cut": 3,
    "lab/models/test_mtp.py::test_a_draft_is_what_the_layer_says_of_the_whole_text": 3,
    "lab/models/test_parity.py::test_greedy_tokens_equal_those_of_mlx_lm": 3,
    "lab/models/test_rope_scaling.py::test_a_whole_model_equals_that_of_mlx_lm": 5,
    "lab/operators/test_course.py::test_models_on_the_fused_operators": 2,
    "lab/prefix_disk/test_restarts.py::test_no_answer_changes_whatever_happens_to_the_folder": 2,
    "lab/server/test_default_forms.py::test_a_user_is_extracted": 5,
    "lab/test_book.py::test_a_dead_link_is_found": 3,
    "lab/test_delta_decode.py::test_it_equals_float64_and_the_recurrence": 3,
    "lab/test_fused_checks.py::test_a_wrong_operator_of_mlx": 2,
    "lab/test_growing_pool.py::test_answers_and_plans_are_those_of_a_whole_pool": 3,
    "test_default_model.py::test_chunked_prefill_never_changes_the_answer": 4,
    "test_default_model.py::test_speculation_never_changes_the_answer": 3,
    "test_fuzz.py::test_answers_in_company_are_those_alone": 2,
    "week_2/test_day_7_loop.py::test_chunked_prefill_never_changes_the_answer": 7,
    "week_3/test_day_7_pairs.py::test_beside_every_feature": 3,
    "week_3/test_day_9_acceptance.py::test_drawn_drafts_keep_the_distribution": 2,
    "week_3/test_day_9_acceptance.py::test_each_draft_token_is_accepted_with_its_own_probability": 2,
    "week_3/test_day_9_sampling.py::test_drafts_do_not_change_what_is_drawn": 4,
    "week_4/test_day_3_model.py::test_logits_equal_those_of_transformers_however_the_prompt_is_cut": 3,
}


@pytest.fixture(scope="session")
def ranks_of(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Ranks]]:
    """ranks_of(2): two ranks of the solution under test, the same two for all tests of a process."""
    started: dict[int, Ranks] = {}

    def of(size: int) -> Ranks:
        if size not in started:
            folder = tmp_path_factory.mktemp(f"ranks-{size}")
            started[size] = Ranks(pytestconfig.getoption("--solution"), size, folder)
        return started[size]

    yield of
    for each in started.values():
        each.close()


def pytest_configure(config: pytest.Config) -> None:
    """Let fakes make what the solution under test makes."""
    FakeCache.solution = config.getoption("--solution")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but every n-th case of the tests in _EVERY as long."""
    counts: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if name in _EVERY:
            if counts[name] % _EVERY[name]:
                item.add_marker(pytest.mark.long)
            counts[name] += 1


def pytest_make_parametrize_id(val: object) -> str | None:
    """A readable name for what pytest would number: float16 and not dtype0, 2x6x5 and not shape3."""
    name = _named(val)
    return name if name and len(name) <= _LONGEST_ID else None


def _named(val: object) -> str | None:
    if isinstance(val, mx.Dtype):
        return str(val).rpartition(".")[2]
    if isinstance(val, (tuple, list)):
        parts = [_named(each) for each in val]
        between = "x" if isinstance(val, tuple) else "_"
        return None if None in parts else between.join(map(str, parts)) or "empty"
    if isinstance(val, Mapping):
        parts = [_named(each) for each in val.values()]
        return (
            None if None in parts else "_".join(f"{key}={part}" for key, part in zip(val, parts, strict=True))
        )
    if isinstance(val, (int, float)) or val is None:
        return str(val)
    return val if isinstance(val, str) and re.fullmatch(r"[\w.]+", val) else None
