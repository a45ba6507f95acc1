"""mlx-lm behind the seam says what the reference says, under the same rules."""

from dataclasses import replace

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from tests.helpers.checkpoints import edit_json, tensors_of
from tests.helpers.fakes import FakeClock

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import (
    DoneEvent,
    PrefillEvent,
    Prompt,
    SamplingParams,
    Timing,
    TokenEvent,
    UserError,
    Wanted,
)

pytestmark = pytest.mark.usefixtures("kernels_on")
LONG = "there was a small dog and a big cat and "
AT_RANDOM = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.02, seed=3, max_tokens=20)


def engine(solution, name="random:qwen3-shrunk"):
    llm = load_solution(solution)
    checkpoint = load_checkpoint(name, dtype="float32")
    return llm, llm.build_model(checkpoint), checkpoint


def run(of, prompts, **settings):
    llm, model, checkpoint = of
    return llm.batch_generate(model, checkpoint.tokenizer, prompts, **settings)


def timeless(done):
    return [replace(completion, timing=Timing(0.0)) for completion in done]


@pytest.mark.parametrize("name", ["default", "random:qwen3-shrunk", "random:qwen2.5-shrunk,bits=4"])
@pytest.mark.parametrize(("batch_size", "prefill_step"), [(3, 8), (1, 999), (5, 1)])
def test_completions_equal_those_of_the_reference(name, batch_size, prefill_step):
    prompts = [
        "Once upon a time",
        "",
        "x" * 30,
        Prompt(LONG * 2, SamplingParams(ignore_eos=True, max_tokens=30)),
        Prompt("Hi", SamplingParams(stop=("e", "ba"))),
        Prompt([1, 2, 3], SamplingParams(max_tokens=1)),
        [10**6],
        "abc " * 200,
        "y" * 120 if name != "default" else "z",
    ]
    settings = {"max_seq_len": 120, "batch_size": batch_size, "prefill_step": prefill_step}
    mine, theirs = (run(engine(solution, name), prompts, **settings) for solution in ("ref", "mlx-lm"))
    assert timeless(theirs) == timeless(mine)
    assert [completion.prompt_idx for completion in theirs] == list(range(len(prompts)))


def test_events_tell_the_whole_story():
    events = []
    prompts = [Prompt(LONG, SamplingParams(max_tokens=9)), "", Prompt("Hi", SamplingParams(stop=("a",)))]
    done = run(engine("mlx-lm"), prompts, prefill_step=8, on_event=events.append, max_seq_len=90)
    for completion in done:
        own = [e for e in events if not isinstance(e, DoneEvent) and e.prompt_idx == completion.prompt_idx]
        chunks = [e for e in own if isinstance(e, PrefillEvent)]
        tokens = [e for e in own if isinstance(e, TokenEvent)]
        assert own == [*chunks, *tokens]
        assert "".join(e.text for e in tokens) == completion.text
        assert tuple(e.token_id for e in tokens if e.token_id is not None) == completion.token_ids
        assert tuple(e.time_s for e in tokens if e.token_id is not None) == completion.timing.token_s
        counts = [e.num_computed_tokens for e in chunks]
        assert counts == sorted(set(counts)) and counts[-1:] == [completion.num_prompt_tokens][: len(counts)]
        assert all(b - a <= 8 for a, b in zip([0, *counts], counts, strict=False))
    assert sorted(e.completion.prompt_idx for e in events if isinstance(e, DoneEvent)) == [0, 1, 2]


def test_prompts_wait_for_their_arrival():
    clock = FakeClock()
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)

    def tick(event):
        clock.now += 1.0

    prompts = [Prompt("late", sampling, arrival_s=6.0), Prompt("early", sampling)]
    late, early = run(engine("mlx-lm"), prompts, clock=clock, on_event=tick)
    assert early.timing.arrival_s < late.timing.arrival_s
    assert late.timing.token_s[0] > late.timing.arrival_s >= early.timing.token_s[0]
    assert (late.timing.ttft_s or 0) > 0


def test_no_more_than_batch_size_at_a_time():
    open_now = set()
    most = 0

    def watch(event):
        nonlocal most
        if isinstance(event, DoneEvent):
            open_now.discard(event.completion.prompt_idx)
        else:
            open_now.add(event.prompt_idx)
            most = max(most, len(open_now))

    prompts = [Prompt(LONG[: 5 * n], SamplingParams(max_tokens=n, ignore_eos=True)) for n in range(1, 8)]
    assert len(run(engine("mlx-lm"), prompts, batch_size=3, prefill_step=4, on_event=watch)) == 7
    assert most == 3


def test_a_seed_repeats_itself_whoever_else_is_served():
    of = engine("mlx-lm")
    (alone,) = run(of, [Prompt("Once", AT_RANDOM)])
    crowd = run(of, [Prompt("Other", replace(AT_RANDOM, seed=9)), Prompt("Once", AT_RANDOM), "greedy"])
    assert crowd[1].token_ids == alone.token_ids
    (other,) = run(of, [Prompt("Once", replace(AT_RANDOM, seed=4))])
    assert other.token_ids != alone.token_ids


def streamed(of, prompt, **settings):
    llm, model, checkpoint = of
    return llm.stream_generate(model, checkpoint.tokenizer, prompt, **settings)


@pytest.mark.parametrize("name", ["default", "random:qwen3-shrunk", "random:qwen2.5-shrunk,bits=4"])
def test_one_stream_equals_that_of_the_reference(name):
    for sampling in (SamplingParams(max_tokens=40, ignore_eos=True), SamplingParams(stop=("e",))):
        ends = []
        for solution in ("ref", "mlx-lm"):
            settings = {"sampling": sampling, "prefill_step": 7, "max_seq_len": 100}
            *events, end = streamed(engine(solution, name), LONG, **settings)
            assert isinstance(end, DoneEvent) and not any(isinstance(e, DoneEvent) for e in events)
            ends.append(end.completion)
            chunks = [e.num_computed_tokens for e in events if isinstance(e, PrefillEvent)]
            assert chunks[0] == 7 and chunks[-1] == end.completion.num_prompt_tokens
        assert timeless(ends[:1]) == timeless(ends[1:])


def test_a_stream_may_be_left_early():
    events = streamed(engine("mlx-lm"), LONG)
    next(events)
    events.close()


TOO_LONG = "the prompt has 3 tokens but max_seq_len is 2: shorten it, or raise the limit to 3 or more"
IMPOSSIBLE = [
    ("", {}, "the prompt is empty: give at least one token"),
    ("abc", {"prefill_step": 0}, "prefill_step and batch_size must be 1 or more"),
    ("abc", {"max_seq_len": 2}, TOO_LONG),
    ("abc", {"max_seq_len": 513}, "max_seq_len must be 1 to 512 for this model, not 513"),
]


@pytest.mark.parametrize(("prompt", "settings", "complaint"), IMPOSSIBLE)
def test_a_stream_that_cannot_be(prompt, settings, complaint):
    with pytest.raises(UserError) as caught:
        list(streamed(engine("mlx-lm"), prompt, **settings))
    assert str(caught.value) == complaint


def test_settings_that_cannot_be():
    of = engine("mlx-lm")
    with pytest.raises(UserError, match="prompts is one string: pass a list of prompts"):
        run(of, "one string")
    with pytest.raises(UserError, match="batch_size must be 1 or more"):
        run(of, ["a"], batch_size=0)
    with pytest.raises(UserError, match="this model is not mlx-lm's: build it with the same"):
        run((of[0], engine("ref")[1], of[2]), ["a"])


def test_an_exception_reaches_the_caller_and_frees_the_caches():
    of = engine("mlx-lm")

    def fail(event):
        if isinstance(event, TokenEvent):
            raise RuntimeError("listener")

    with pytest.raises(RuntimeError, match="listener"):
        run(of, ["a", "b"], on_event=fail)
    assert len(run(of, ["a"], sampling=SamplingParams(max_tokens=2))) == 1


def test_the_model_keeps_to_the_seam():
    _, model, _ = engine("mlx-lm", "random:qwen2.5-shrunk")
    tokens = mx.array([[1, 2, 3, 4]])
    whole = model(tokens)
    assert whole.shape == (1, 4, 320)
    assert model(tokens, wanted=Wanted(last=0)).shape == (1, 0, 320)
    cache = model.create_kv_cache()
    model(tokens[:, :3], 0, cache)
    cache[0].materialize()
    assert cache[0].offset == 3 and cache[0].fetch()[0].shape == (1, 2, 3, 16)
    with pytest.raises(ValueError, match="offset 2 does not match a cache of 3 tokens"):
        model(tokens[:, 3:], 2, cache)
    last = model(tokens[:, 3:], 3, cache, wanted=Wanted(last=1))
    assert mx.allclose(last[:, -1], whole[:, -1], atol=1e-4)
    cache[0].release()
    assert cache[0].offset == 0


SAME_WEIGHTS = ["random:qwen3-shrunk", "random:qwen2.5-shrunk,bits=16", "random:qwen3-shrunk,bits=4,tied=0"]


@pytest.mark.parametrize("name", SAME_WEIGHTS)
def test_the_weights_are_those_that_mlx_lm_reads_itself(name):
    _, model, checkpoint = engine("mlx-lm", name)
    own, _ = load_model(checkpoint.path)
    own.set_dtype(mx.float32)
    ours = dict(tree_flatten(model.network.parameters()))
    theirs = dict(tree_flatten(own.parameters()))
    assert ours.keys() == theirs.keys()
    assert all(mx.array_equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("name", ["prefill_policy", "chunk_policy", "metrics", "prefill_memory"])
def test_what_mlx_lm_cannot_do_is_refused(name):
    with pytest.raises(UserError, match=name):
        run(engine("mlx-lm"), ["Hi"], **{name: 1})


# The weights are there once, under any name


def test_two_engines_hold_the_weights_once():
    checkpoint = load_checkpoint("random:qwen3-0.6b,layers=2,vocab=4096", dtype="float32")
    before = mx.get_active_memory()
    model = load_solution("mlx-lm").build_model(checkpoint)
    assert mx.get_active_memory() - before < 1_000_000
    assert model.config.num_hidden_layers == 2


def test_weights_under_another_name(copy):
    folder = copy("random:qwen3-shrunk")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    named = dict.fromkeys(tensors_of(folder, "weights.safetensors"), "weights.safetensors")
    edit_json(folder / "model.safetensors.index.json", weight_map=named)
    checkpoint = load_checkpoint(str(folder))
    with pytest.raises(UserError, match=r"mlx-lm reads only model\*\.safetensors: rename the weight files"):
        load_solution("mlx-lm").build_model(checkpoint)
