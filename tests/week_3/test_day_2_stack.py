"""Day 3.2: all layers of a model as one operator."""

from dataclasses import dataclass, field

import mlx.core as mx
import pytest
from tests.helpers.toy import random_array

from tiny_llm_lab.types import NO_CACHE, Wanted

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


@pytest.mark.task("3.2.6")
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


@pytest.mark.task("3.2.6")
def test_the_first_tokens_get_storage_from_the_stack(llm):
    stack, caches = Recorder(), [llm.TinyKvFullCache() for _ in range(LAYERS)]
    x = random_array(1, 2, 3, E)
    got = llm.stacked(stack, x, caches, WANTED)
    ((kind, given, wanted),) = stack.calls
    assert (kind, wanted) == ("new rows", WANTED) and mx.array_equal(given, x) and got.shape == (2, 1, E)
    assert [layer.keys[0, 0, 0, 0].item() for layer in caches] == [1, 11, 21], "what is stored now"
    assert [layer.values[0, 0, 0, 0].item() for layer in caches] == [7, 17, 27]
    assert [layer.offset for layer in caches] == [3, 3, 3]


@pytest.mark.task("3.2.6")
def test_a_batch_goes_through_all_layers_at_once(llm):
    stack, before = Recorder(), [3, 6, 1]
    caches = batch(llm, before)
    assert llm.stacked(stack, random_array(1, 3, 2, E), caches, WANTED) is not None
    _, _, offsets, keys, _, wanted = stack.calls[0]
    assert (offsets, wanted) == ([3, 6, 1], WANTED)
    assert keys[0].shape == (4, G, 8, D), "storage may have more rows than the batch"
    assert [layer.offset for layer in caches] == [[5, 8, 3]] * LAYERS
    assert before == [3, 6, 1], "the offsets that others hold stay as they were"


@pytest.mark.task("3.2.6")
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


@pytest.mark.task("3.2.6")
@pytest.mark.parametrize("offsets", [[3, 6, 1], [3, 6, 1, 2, 2]])
def test_a_batch_without_room_or_of_another_size(llm, offsets):
    stack, caches = Recorder(), batch(llm, offsets, rows=5, room=7)
    assert llm.stacked(stack, random_array(1, 3, 2, E), caches, WANTED) is None
    assert stack.calls == [] and [layer.offset for layer in caches] == [offsets] * LAYERS


@pytest.mark.task("3.2.6")
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


@pytest.mark.task("3.2.6")
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
