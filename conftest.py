"""What tests of several folders need."""

import gc
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

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
    "kernels/test_bytes.py::test_nothing_but_the_rounding_is_lost": 7,
    "kernels/test_invariance.py::test_linear": 5,
    "kernels/test_linear.py::test_packed": 5,
    "kernels/test_linear.py::test_several_products_with_and_without_bias": 4,
    "kernels/test_models.py::test_16_bits": 5,
    "lab/models/test_baseline.py::test_completions_equal_those_of_the_reference": 7,
    "lab/models/test_baseline.py::test_one_stream_equals_that_of_the_reference": 2,
    "lab/models/test_hybrid_engine.py::test_a_cut_and_company_change_no_bit_of_a_logit": 3,
    "lab/models/test_hybrid_layouts.py::test_other_names_and_other_layouts_are_the_same_weights": 4,
    "lab/models/test_hybrid_parity.py::test_a_batch_answers_as_each_request_alone": 5,
    "lab/models/test_hybrid_parity.py::test_blocks_of_tokens_give_the_same_logits": 5,
    "lab/models/test_hybrid_parity.py::test_greedy_tokens_equal_those_of_transformers": 2,
    "lab/models/test_hybrid_parity.py::test_logits_equal_those_of_float64": 5,
    "lab/models/test_hybrid_parity.py::test_logits_equal_those_of_mlx_lm": 5,
    "lab/models/test_hybrid_parity.py::test_logits_equal_those_of_transformers_however_the_prompt_is_cut": 7,
    "lab/models/test_hybrid_parity.py::test_prompts_of_any_length": 2,
    "lab/models/test_mtp.py::test_a_draft_is_what_the_layer_says_of_the_whole_text": 7,
    "lab/models/test_parity.py::test_greedy_tokens_equal_those_of_mlx_lm": 5,
    "lab/models/test_parity.py::test_logits_with_a_cache_equal_those_of_mlx_lm": 3,
    "lab/models/test_rope_scaling.py::test_a_whole_model_equals_that_of_mlx_lm": 5,
    "lab/models/test_chat.py::test_what_a_template_takes": 3,
    "lab/operators/test_beside_mlx_lm.py::test_pages_in_any_order": 4,
    "lab/operators/test_beside_mlx_lm.py::test_logits_are_those_of_mlx_lm": 4,
    "lab/operators/test_course.py::test_models_on_the_fused_operators": 2,
    "lab/prefix_disk/test_restarts.py::test_after_a_restart_a_prompt_computes_its_last_block": 3,
    "lab/prefix_disk/test_restarts.py::test_what_is_read_has_the_same_bits": 5,
    "lab/prefix_disk/test_restarts.py::test_no_answer_changes_whatever_happens_to_the_folder": 2,
    "lab/server/test_default_forms.py::test_a_user_is_extracted": 5,
    "lab/server/test_embeddings.py::test_wrong_values_of_every_field": 3,
    "lab/test_simulate.py::test_the_reference_against_itself_is_equal": 3,
    "lab/test_delta_decode.py::test_it_equals_float64": 7,
    "lab/test_growing_pool.py::test_answers_and_plans_are_those_of_a_whole_pool": 7,
    "lab/test_partitioned_attention.py::test_rows_of_different_lengths": 5,
    "lab/test_pooling_engine.py::test_any_schedule_gives_the_same_vectors": 4,
    "lab/test_ranks.py::test_bad_use_is_one_line": 3,
    "lab/test_simulate.py::test_the_policy_serves_what_the_best_static_budget_does": 3,
    "test_default_engine.py::test_no_draft_changes_an_answer": 4,
    "test_default_model.py::test_chunked_prefill_never_changes_the_answer": 7,
    "test_default_model.py::test_speculation_never_changes_the_answer": 3,
    "test_fuzz.py::test_answers_in_company_are_those_alone": 2,
    "week_2/test_day_3_metal.py::test_quantized_matmul_metal": 5,
    "week_2/test_day_5_layer.py::test_a_fused_layer_is_the_layer": 4,
    "week_2/test_day_5_metal.py::test_flash_attention_metal": 7,
    "week_2/test_day_7_loop.py::test_chunked_prefill_never_changes_the_answer": 13,
    "week_3/test_day_2_model.py::test_pages_do_not_change_logits": 3,
    "week_3/test_day_7_ahead.py::test_answers_are_those_of_week_2": 2,
    "week_3/test_day_7_pairs.py::test_beside_every_feature": 9,
    "week_3/test_day_9_acceptance.py::test_drawn_drafts_keep_the_distribution": 3,
    "week_3/test_day_9_acceptance.py::test_each_draft_token_is_accepted_with_its_own_probability": 3,
    "week_3/test_day_9_engine.py::test_looked_up_drafts_change_no_answer_on_text_that_repeats": 3,
    "week_3/test_day_9_gate.py::test_no_history_is_much_slower_than_the_better_of_always_and_never": 10,
    "week_3/test_day_9_loop.py::test_every_proposer_changes_nothing": 5,
    "week_3/test_day_9_loop.py::test_speculation_changes_nothing_that_is_said": 5,
    "week_3/test_day_9_pairs.py::test_beside_drafts": 2,
    "week_4/test_day_3_model.py::test_logits_equal_those_of_transformers_however_the_prompt_is_cut": 5,
    "week_4/test_day_4_prefix.py::test_a_shared_beginning_hits_from_the_third_request_on": 3,
    "week_4/test_day_4_prefix.py::test_a_shared_beginning_of_live_requests_is_computed_once": 3,
    "tools/tests/test_book.py::test_a_dead_link_is_found": 3,
    "week_4/test_day_4_slots.py::test_a_state_has_seen_exactly_the_tokens_before_a_step": 7,
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and items out of all garbage collections: they stay, and are half a million."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Remove the bytecode of what tests wrote into temporary folders, where it has a folder of its own."""
    if sys.pycache_prefix is not None:
        shutil.rmtree(f"{sys.pycache_prefix}{Path(tempfile.gettempdir()).resolve()}", ignore_errors=True)


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
