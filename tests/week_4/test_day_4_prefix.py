"""Day 4.4: a hybrid's prefix cache hits: it computes what came after the last snapshot before a change."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.helpers.hybrids import HYBRID, hybrid_weights
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import EngineOptions, SamplingParams, SchedulerConfig

pytestmark = pytest.mark.task("4.4.4")
SHARED = {100: 96, 480: 480, 552: 544, 979: 976}  # tokens of a prompt, and in full blocks of 16


def engine_of(llm: Any, num_states: int = 22, snapshot_every: int = 320, **config: Any) -> Any:
    model = llm.Qwen(HYBRID, hybrid_weights(HYBRID), llm.ArrayOps())
    options = EngineOptions(num_blocks=200, num_states=num_states, snapshot_every=snapshot_every)
    return llm.Engine(model, ByteTokenizer(), SchedulerConfig(**config), options)


def text(seed: int, length: int) -> list[int]:
    return [(seed * 101 + i * i * 7 + i) % 250 for i in range(length)]


def ask(engine: Any, *prompts: Sequence[int], max_tokens: int = 3) -> tuple[list[int], list[int]]:
    """How many tokens of each prompt were cached, and the last answer."""
    for i, prompt in enumerate(prompts):
        engine.add(str(i), prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    cached: dict[str, int] = {}
    answer: list[int] = []
    while engine.has_requests:
        for output in engine.step():
            cached[output.request_id] = output.num_cached_tokens
            if output.request_id == str(len(prompts) - 1):
                answer += output.token_ids
    return [cached[str(i)] for i in range(len(prompts))], answer


def test_a_turn_of_a_chat_computes_what_came_after_the_last_full_block(llm: Any) -> None:
    engine, chat, known = engine_of(llm), text(0, 70), 0
    for turn in range(10):
        (cached,), answer = ask(engine, chat, max_tokens=23)
        assert cached == known // 16 * 16
        known = len(chat) + 23 - 1  # the last token of an answer is not computed
        chat = [*chat, *answer, *text(turn + 1, 15)]


@pytest.mark.parametrize("length", SHARED)
def test_a_shared_beginning_hits_from_the_third_request_on(llm: Any, length: int) -> None:
    """The second request sees that blocks are shared, and leaves a snapshot where its own text begins."""
    engine, system = engine_of(llm), text(9, length)
    cached = [ask(engine, [*system, *text(20 + i, 40)])[0][0] for i in range(4)]
    every = SHARED[length] // 320 * 320
    assert cached == [0, every, SHARED[length], SHARED[length]]


@pytest.mark.parametrize("length", SHARED)
def test_a_shared_beginning_of_live_requests_is_computed_once(llm: Any, length: int) -> None:
    engine, system = engine_of(llm, max_num_batched_tokens=64), text(9, length)
    cached, _ = ask(engine, *([*system, *text(20 + i, 40)] for i in range(4)))
    assert cached == [0, *[SHARED[length]] * 3]


def test_a_prompt_again_and_a_prompt_with_an_edit_in_the_middle(llm: Any) -> None:
    engine, prompt = engine_of(llm), text(3, 1000)
    assert ask(engine, prompt)[0] == [0]
    assert ask(engine, prompt)[0] == [992], "all but the tokens after the last full block"
    assert ask(engine, prompt[:-8])[0] == [960], "the last of them must be computed; and 960 = 3 * 320"
    edited = [*prompt[:700], 251, *prompt[701:]]
    assert ask(engine, edited)[0] == [640], "700 is between the snapshots at 640 and at 960"


def test_without_room_for_a_snapshot_nothing_is_found(llm: Any) -> None:
    engine, prompt = engine_of(llm, num_states=1), text(3, 100)
    assert [ask(engine, prompt)[0] for _ in range(2)] == [[0], [0]]


def test_blocks_without_a_snapshot_are_computed_once_more_for_all_live_requests(llm: Any) -> None:
    engine, system = engine_of(llm), text(9, 100)
    ask(engine, [*system, *text(20, 40)])
    assert ask(engine, *([*system, *text(21 + i, 40)] for i in range(3)))[0] == [0, 96, 96]


def test_a_text_leaves_snapshots_where_they_are_worth_it(llm: Any) -> None:
    """In chunks of 64: every 320 tokens, at the end of the prompt, and one behind the answer."""
    engine = engine_of(llm, max_num_batched_tokens=64)
    snapshots = engine.core.prefix_cache.snapshots
    ask(engine, text(3, 400), max_tokens=100)
    assert (len(snapshots), snapshots.num_added) == (3, 9), "320, 384, and 400 to 496 behind one another"
    ask(engine, text(3, 400), max_tokens=1)
    assert (snapshots.num_added, snapshots.num_used) == (10, 1), "384 is used, and only 400 is new"


def test_the_end_of_an_answer_stays_for_all_who_go_on_from_it(llm: Any) -> None:
    """Also when it is the newest of a request that still runs."""
    engine, prompt = engine_of(llm), text(5, 40)
    _, answer = ask(engine, prompt, max_tokens=60)
    engine.add("first", prompt, SamplingParams(max_tokens=60, ignore_eos=True))
    while engine.core.scheduler.pool.num_free > 200 - 5:
        engine.step()  # up to token 80, of the same answer
    going_on = [*prompt, *answer[:40], *text(6, 20)]
    engine.add("second", going_on, SamplingParams(max_tokens=1, ignore_eos=True))
    while engine.has_requests:
        engine.step()
    assert ask(engine, [*going_on[:80], *text(7, 20)])[0] == [80]
