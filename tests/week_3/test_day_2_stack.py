"""Day 3.2: all layers of a model as one operator."""

from dataclasses import dataclass, field

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu
from tests.helpers.paging import scattered_blocks
from tests.helpers.stacks import Watched, through_rows
from tests.helpers.toy import random_array, random_tokens

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime import native
from tiny_llm_lab.types import ALL, NO_CACHE, Wanted
from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.packages import PACKAGES

pytestmark = pytest.mark.task("3.2.6")

G, D, E = 2, 4, 8
LAYERS = 3
WANTED = Wanted(2, [1, 0])


@dataclass
class Recorder:
    """A stack that computes nothing: it notes its calls and returns arrays that tell whence."""

    is_busy: bool = False
    calls: list = field(default_factory=list)

    def over_rows(self, x, offsets, keys, values, wanted):
        self.calls.append(("rows", x, offsets, list(keys), list(values), wanted))
        if self.is_busy:
            return None
        return x[:, :1], [k + 1 for k in keys], [v + 2 for v in values]

    def over_new_rows(self, x, wanted):
        self.calls.append(("new rows", x, wanted))
        keys, values = ([mx.full((len(x), G, 8, D), 10 * i + n) for i in range(LAYERS)] for n in (1, 7))
        return x[:, :1], keys, values

    def over_pages(self, x, cache, layout, wanted):
        self.calls.append(("pages", x, cache, layout, wanted))
        return x[:, :1]


def numbered(offset, rows, room, cache, dtype=mx.float32):
    """Caches of one layer each, whose storage is full of numbers of their own."""
    caches = []
    for i in range(LAYERS):
        layer = cache()
        layer.keys = mx.full((rows, G, room, D), 10 * i, dtype)
        layer.values = mx.full((rows, G, room, D), 10 * i + 5, dtype)
        layer.offset = offset
        caches.append(layer)
    return caches


def one_request(llm, offset=5, rows=1, room=8, dtype=mx.float32):
    return numbered(offset, rows, room, llm.TinyKvFullCache, dtype)


def batch(llm, offset, rows=4, room=8):
    return numbered(offset, rows, room, lambda: llm.BatchingKvCache(rows))


def contents(caches):
    return [(layer.keys.tolist(), layer.values.tolist(), layer.offset) for layer in caches]


def test_a_request_goes_through_all_layers_at_once(llm):
    stack, caches, x = Recorder(), one_request(llm), random_array(1, 1, 3, E)
    got = llm.stacked(stack, x, caches, WANTED)
    ((kind, given, offsets, keys, values, wanted),) = stack.calls
    assert (kind, offsets, wanted) == ("rows", [5], WANTED)
    assert mx.array_equal(given, x) and got.shape == (1, 1, E)
    assert [k[0, 0, 0, 0].item() for k in keys] == [0, 10, 20], "keys in the order of the layers"
    assert [v[0, 0, 0, 0].item() for v in values] == [5, 15, 25], "values in the order of the layers"
    assert keys[0].shape == (1, G, 8, D), "the whole storage, with its room"
    assert [layer.keys[0, 0, 0, 0].item() for layer in caches] == [1, 11, 21], "what is stored now"
    assert [layer.values[0, 0, 0, 0].item() for layer in caches] == [7, 17, 27]
    assert [layer.offset for layer in caches] == [8, 8, 8]


def test_the_first_tokens_get_storage_from_the_stack(llm):
    stack, caches = Recorder(), [llm.TinyKvFullCache() for _ in range(LAYERS)]
    x = random_array(1, 2, 3, E)
    got = llm.stacked(stack, x, caches, WANTED)
    ((kind, given, wanted),) = stack.calls
    assert (kind, wanted) == ("new rows", WANTED) and mx.array_equal(given, x) and got.shape == (2, 1, E)
    assert [layer.keys[0, 0, 0, 0].item() for layer in caches] == [1, 11, 21], "what is stored now"
    assert [layer.values[0, 0, 0, 0].item() for layer in caches] == [7, 17, 27]
    assert [layer.offset for layer in caches] == [3, 3, 3]


def test_a_batch_goes_through_all_layers_at_once(llm):
    stack, before = Recorder(), [3, 6, 1]
    caches = batch(llm, before)
    assert llm.stacked(stack, random_array(1, 3, 2, E), caches, WANTED) is not None
    _, _, offsets, keys, _, wanted = stack.calls[0]
    assert (offsets, wanted) == ([3, 6, 1], WANTED)
    assert keys[0].shape == (4, G, 8, D), "storage may have more rows than the batch"
    assert [layer.offset for layer in caches] == [[5, 8, 3]] * LAYERS
    assert before == [3, 6, 1], "the offsets that others hold stay as they were"


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_where_the_layers_go_one_by_one(llm, dtype):
    x = random_array(1, 1, 3, E, dtype=dtype)
    uneven = one_request(llm, dtype=dtype)
    uneven[2].offset = 4
    other = mx.float32 if dtype == mx.bfloat16 else mx.bfloat16
    mixed = [*one_request(llm, dtype=dtype)[:2], NO_CACHE]
    half = [*one_request(llm, offset=0, dtype=dtype)[:2], llm.TinyKvFullCache()]
    for why, caches in {
        "no cache": (),
        "a batch without rows": [llm.BatchingKvCache(1) for _ in range(LAYERS)],
        "a layer without storage": half,
        "no room for three more": one_request(llm, offset=6, dtype=dtype),
        "storage of another dtype": one_request(llm, dtype=other),
        "storage of another number of rows": one_request(llm, rows=2, dtype=dtype),
        "a layer with fewer tokens": uneven,
        "a layer with a cache of another class": mixed,
    }.items():
        stack = Recorder()
        has_storage = caches and all(getattr(layer, "keys", mx.array([])).size for layer in caches)
        before = contents(caches) if has_storage else []
        assert llm.stacked(stack, x, caches, WANTED) is None, why
        assert stack.calls == [], why
        for layer, (keys, _, offset) in zip(caches or [], before, strict=False):
            assert layer.offset == offset and layer.keys.tolist() == keys, why
    full = one_request(llm, offset=5, dtype=dtype)
    assert llm.stacked(Recorder(), x, full, WANTED) is not None, "just enough room"


@pytest.mark.parametrize("offsets", [[3, 6, 1], [3, 6, 1, 2, 2]])
def test_a_batch_without_room_or_of_another_size(llm, offsets):
    stack, caches = Recorder(), batch(llm, offsets, rows=5, room=7)
    assert llm.stacked(stack, random_array(1, 3, 2, E), caches, WANTED) is None
    assert stack.calls == [] and [layer.offset for layer in caches] == [offsets] * LAYERS


def test_storage_that_is_still_computed_stays(llm):
    stack, caches = Recorder(is_busy=True), one_request(llm)
    before = contents(caches)
    assert llm.stacked(stack, random_array(1, 1, 3, E), caches, WANTED) is None
    assert len(stack.calls) == 1, "the stack says that it cannot"
    for layer, (keys, values, offset) in zip(caches, before, strict=True):
        assert layer.offset == offset
        assert layer.keys.tolist() == keys and layer.values.tolist() == values


class Pools:
    """What a `PagedLayer` has of a cache."""

    def __init__(self, dtype):
        self.keys = [mx.zeros((2, G, 4, D), dtype)] * LAYERS


@pytest.mark.parametrize(("pool", "is_taken"), [(mx.float32, True), (mx.int8, True), (mx.bfloat16, False)])
def test_pages_go_through_all_layers_at_once(llm, pool, is_taken):
    stack, cache, layout = Recorder(), Pools(pool), object()
    layers = [llm.PagedLayer(cache, i, layout) for i in range(LAYERS)]
    x = random_array(1, 5, 1, E)
    got = llm.stacked(stack, x, layers, WANTED)
    if not is_taken:
        assert got is None and stack.calls == []
        return
    ((kind, given, *where),) = stack.calls
    assert kind == "pages" and mx.array_equal(given, x)
    assert where == [cache, layout, WANTED]


# A model whose layers are one operator computes what it computed before, to the bit


@pytest.fixture
def models(llm):
    """models(name, dtype): a small random model, its layers in one operator and one by one.

    On given kernels, as the task asks for no C++.
    """

    def of(name="random:qwen3-shrunk", dtype="float32"):
        with on_cpu("cpp"):
            native.binding()  # where there is no compiler, this says so
            checkpoint = load_checkpoint(name, dtype=dtype)
            ops = native.kernels(PACKAGES["ref"], checkpoint.weights)
        parts = (checkpoint.config, checkpoint.weights, ops)
        stacked, one_by_one = llm.Qwen(*parts), llm.Qwen(*parts)
        stacked.stack, one_by_one.stack = Watched(stacked.stack), None
        return stacked, one_by_one

    return of


@pytest.mark.parametrize(("kernels", "has_stack"), [("cpp", True), ("mlx", False), ("off", False)])
def test_a_model_has_a_stack_where_its_operators_have_one(llm, kernels, has_stack):
    with on_cpu(kernels):
        model = llm.build_model(load_checkpoint("random:qwen3-shrunk", dtype="float32"))
    assert (model.stack is not None) == has_stack


@pytest.mark.parametrize(
    ("name", "dtype", "rows", "keep"),
    [
        ("random:qwen3-shrunk", "bfloat16", None, ALL),
        ("random:qwen3-shrunk", "float32", [1], 2),
        ("random:qwen2.5-shrunk", "float32", [1, 0], 0),
        ("random:qwen2.5-shrunk", "bfloat16", [], 1),
        ("random:qwen3-shrunk,bits=4", "bfloat16", [1], 5),
        ("random:qwen3-shrunk,bits=4", "float16", [1, 0], 2),
    ],
)
def test_rows_have_the_same_bits_with_and_without_a_stack(llm, models, name, dtype, rows, keep):
    stacked, plain = models(name, dtype)
    for got, want in zip(
        *(through_rows(llm, m, Wanted(keep, rows), [14]) for m in (stacked, plain)), strict=True
    ):
        assert got.dtype == want.dtype and mx.array_equal(got, want)
    took = [True, True, False, True, True, True, True]
    assert stacked.stack.calls == took, "all but the chunk that begins while the one before it waits"


@pytest.mark.parametrize("kv_bits", [None, 8])
@pytest.mark.parametrize(("dtype", "rows"), [("bfloat16", None), ("float32", []), ("bfloat16", [6, 3])])
def test_pages_have_the_same_bits_with_and_without_a_stack(llm, models, dtype, rows, kv_bits):
    made = []
    for m in models(dtype=dtype):
        ids, num_blocks = scattered_blocks(2, 4, [20, 9])
        cache = m.create_paged_kv_cache(num_blocks, 4, kv_bits)
        for parts in ([(ids[0], 0, 13), (ids[1], 0, 2)], [(ids[0], 13, 6), (ids[1], 2, 1)]):
            layout = llm.StepLayout.of(4, [Slice(*part) for part in parts])
            tokens = random_tokens(3, layout.query_starts[-1])[:, None]
            logits = m(tokens, layout.positions, cache.begin_step(layout), wanted=Wanted(rows=rows))
            made.append((logits, cache.pools))
            mx.eval(made)
        assert m.stack is None or m.stack.calls == [True, True]
    for (got, pools), (want, others) in zip(made[:2], made[2:], strict=True):
        assert mx.array_equal(got, want)
        assert all(mx.array_equal(a, b) for a, b in zip(pools, others, strict=True))


def test_what_was_fetched_before_stays(models):
    m, tokens = models()[0], random_tokens(1, 20)
    cache = m.create_kv_cache()
    mx.eval(m(tokens[None, :5], 0, cache))
    held = cache[0].fetch()[0]
    before = held.tolist()
    cache[0].rewind(2)
    for layer in cache[1:]:
        layer.rewind(2)
    mx.eval(m(tokens[None, 10:12], 3, cache))
    assert held.tolist() == before, "a step wrote over keys that are still held"
