"""Logits and answers for prompts with pictures are those of transformers, however they are computed."""

import mlx.core as mx
import pytest
from tests.helpers.golden import golden
from tests.helpers.pictures import GOLDEN_NAMES, SeeingEngine, golden_prompt
from tests.helpers.tolerance import F32_MODEL, as_float64, assert_close

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.serving.llm import LLM
from tiny_llm_lab.types import Prompt, SamplingParams, Wanted
from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.computing.pictures import reader

RECORD = "make_picture_golden"
NUM_LOGITS = 8


def recorded(name):
    return golden(name, RECORD, "pictures")


def logits_of(name, chunk):
    """Of the last positions of a prompt that is computed in chunks."""
    llm, checkpoint = load_solution("ref"), load_checkpoint(name, dtype="float32", has_pictures=True)
    model, (tokens, pictures) = llm.build_model(checkpoint), golden_prompt(name)
    seeing = SeeingEngine(model, dict(checkpoint.weights), num_bytes=10**8)
    own = seeing.queue.with_pictures(tokens, pictures)
    cache, parts = model.create_paged_kv_cache(20, 16), []
    for start in range(0, len(tokens), chunk):
        count = min(chunk, len(tokens) - start)
        slices = [Slice(range(20), start, count, pictures=own)]
        layout = llm.StepLayout.of(16, slices)
        rows, layers = mx.array(tokens[start : start + count], mx.int32)[:, None], cache.begin_step(layout)
        wanted = Wanted(rows=list(range(count)))
        parts.append(reader(model, slices)(rows, layout.positions, layers, wanted=wanted)[:, 0])
        mx.eval(parts[-1], cache.pools)
    return mx.concatenate(parts)[-NUM_LOGITS:]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_logits_are_those_of_transformers_in_any_chunks(name):
    whole = logits_of(name, 1000)
    assert_close(whole, as_float64(mx.array(recorded(name)["logits"])), F32_MODEL)
    for chunk in (1, 7, 64):
        assert_close(logits_of(name, chunk), as_float64(whole), F32_MODEL)


@pytest.mark.parametrize("speculate", ["off", "ngram"])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_answers_are_those_of_transformers(name, speculate):
    tokens, pictures = golden_prompt(name)
    want = recorded(name)["greedy"].tolist()
    settings = {"max_num_batched_tokens": 16, "max_num_seqs": 2}
    with LLM(name, dtype="float32", speculate=speculate, **settings) as llm:
        queue = llm.engine.core.options.prefix_disk
        own = queue.with_pictures(tokens, pictures)
        prompt = Prompt(tokens, SamplingParams(max_tokens=len(want), ignore_eos=True), pictures=own)
        found = [list(done.token_ids) for _ in range(2) for done in llm.generate([prompt, prompt])]
        assert found == [want] * 4
        assert queue.counts.num_pictures == len(pictures), "a picture is read once"
        assert llm.engine.core.prefix_cache.num_hit_tokens > 0


def answer_to(llm, tokens, pictures):
    own = llm.engine.core.options.prefix_disk.with_pictures(tokens, pictures)
    prompt = Prompt(tokens, SamplingParams(max_tokens=24, ignore_eos=True), pictures=own)
    return llm.generate([prompt])[0].token_ids


def test_another_picture_of_the_same_size_is_another_prompt():
    name = GOLDEN_NAMES[0]
    tokens, pictures = golden_prompt(name)
    others = [type(each)(255 - each.patches, each.rows, each.columns) for each in pictures]
    with LLM(name, dtype="float32") as llm:
        first = tokens.index(llm.checkpoint.config.pictures.token_id)
        found = [answer_to(llm, tokens, seen) for seen in (pictures, others, pictures)]
        assert found[0] == found[2] != found[1]
        # The second prompt finds the text before the first picture, the third all of the first.
        assert llm.engine.core.prefix_cache.num_hit_tokens == (len(tokens) - 1) // 16 * 16 + first // 16 * 16


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_after_a_restart_a_picture_on_the_disk_is_not_read_again(name, tmp_path):
    tokens, pictures = golden_prompt(name)
    others = [type(each)(255 - each.patches, each.rows, each.columns) for each in pictures]
    found = []
    for seen, num_read in ((pictures, 3), (pictures, 0), (others, 3)):
        with LLM(name, dtype="float32", prefix_cache_dir=str(tmp_path)) as llm:
            found.append(answer_to(llm, tokens, seen))
            counts = llm.engine.core.options.prefix_disk.counts
            assert counts.num_pictures == num_read
            assert (counts.num_hit_tokens >= 48) == (num_read == 0)
    assert found[0] == found[1] != found[2]
