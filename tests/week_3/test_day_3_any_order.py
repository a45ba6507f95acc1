"""Day 3.3: requests that share prefixes, in any order, beside a dictionary from prefixes to blocks."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.helpers.any_order import check_in_any_order
from tests.helpers.prefixes import SIZE, found, prompt

N = 7


class Request:
    """One request: its tokens, its blocks, and how far it is."""

    def __init__(self, llm, cache, tokens, is_counted, rank):
        self.tokens, self.rank, self.is_counted, self.blocks = tokens, rank, is_counted, []
        self.match = llm.PrefixMatch(cache, tokens, is_counted, rank)
        self.num_tokens, self.num_shareable = len(tokens), (len(tokens) - 1) // SIZE

    def prefix(self, i):
        return tuple(self.tokens[: (i + 1) * SIZE])


class AnyPrefixes(RuleBasedStateMachine):
    def __init__(self, llm):
        super().__init__()
        self.llm = llm
        self.pool = llm.BlockPool(N, SIZE)
        self.cache = llm.PrefixCache(self.pool, "toy")
        self.stored, self.reserved, self.live = {}, {}, []
        self.seen = set()  # every prefix that was ever stored
        self.counts = [0, 0, 0]  # blocks asked for, tokens asked for, blocks found
        told = self.pool.on_evict

        def on_evict(block):
            self.stored = {prefix: each for prefix, each in self.stored.items() if each != block}
            told(block)

        self.pool.on_evict = on_evict

    @rule(
        blocks=st.lists(st.integers(1, 2), min_size=0, max_size=3),
        rest=st.integers(0, SIZE - 1),
        is_counted=st.booleans(),
        rank=st.integers(0, 1),
    )
    def begin(self, blocks, rest, is_counted, rank):
        if tokens := prompt(*blocks, rest=[3] * rest):
            self.live.append(Request(self.llm, self.cache, tokens, is_counted, rank))

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5))
    def acquire(self, number):
        each = self.live[number % len(self.live)]
        is_first, want = not hasattr(each, "started"), self._found(each)
        each.started = True
        assert each.match.acquire() == want
        first = len(each.blocks)
        each.blocks += want
        for i in range(first, len(each.blocks)):
            self._drop(each, i)
        if each.is_counted:
            asked = (each.num_shareable, each.num_tokens) if is_first else (0, 0)
            self.counts = [a + b for a, b in zip(self.counts, (*asked, len(want)), strict=True)]

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5))
    def reserve(self, number):
        each = self.live[number % len(self.live)]
        each.match.reserve()
        first = len(each.blocks)
        if first < each.num_shareable and self.reserved.get(each.prefix(first)) is not each:
            for i in range(first, each.num_shareable):
                if each.prefix(i) not in self.stored and not self._is_anothers(each, i):
                    self.reserved[each.prefix(i)] = each

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5), answer=st.integers(1, 2))
    def compute(self, number, answer):
        """The next block: of the prompt, or one that the answer fills."""
        each = self.live[number % len(self.live)]
        i = len(each.blocks)
        each.tokens = each.tokens + [answer] * max(0, (i + 1) * SIZE - len(each.tokens))
        if self.pool.num_free and len(each.blocks) < 5:
            (block,) = self.pool.allocate(1)
            each.match.register(each.tokens[i * SIZE : (i + 1) * SIZE], block)
            self.stored.setdefault(each.prefix(i), block)
            self.seen.add(each.prefix(i))
            each.blocks.append(block)
            self._drop(each, i)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5))
    def end(self, number):
        each = self.live.pop(number % len(self.live))
        each.match.release()
        self.pool.free(each.blocks)
        self.reserved = {prefix: owner for prefix, owner in self.reserved.items() if owner is not each}

    @rule(count=st.integers(1, N))
    def others_take_blocks(self, count):
        if count <= self.pool.num_free:
            self.pool.free(self.pool.allocate(count))

    @rule()
    def clear(self):
        self.cache.clear()
        self.stored, self.reserved = {}, {}

    @invariant()
    def agree(self):
        for each in self.live:
            want, end = self._found(each), len(each.blocks)
            assert (each.match.match(), each.match.num_blocks) == (want, end)
            assert each.match.is_past_sharing == (end >= each.num_shareable)
            end += len(want)
            is_waiting = end < each.num_shareable and self._is_anothers(each, end)
            assert each.match.is_waiting == is_waiting, f"{each.tokens} waits for another's block"
        for prefix in self.seen:
            blocks = [self.stored.get(prefix[:end]) for end in range(SIZE, len(prefix) + 1, SIZE)]
            want = blocks[: blocks.index(None)] if None in blocks else blocks
            assert found(self.cache, [*prefix, 9]) == want
        assert len(self.cache.reservations) == len(self.reserved)
        cache = self.cache
        assert [cache.num_query_blocks, cache.num_query_tokens, cache.num_hit_blocks] == self.counts
        assert cache.num_hit_tokens == self.counts[2] * SIZE
        self.pool.check(each.blocks for each in self.live)

    def _found(self, each):
        blocks = []
        for i in range(len(each.blocks), each.num_shareable):
            if each.prefix(i) not in self.stored:
                break
            blocks.append(self.stored[each.prefix(i)])
        return blocks

    def _is_anothers(self, each, i):
        owner = self.reserved.get(each.prefix(i), each)
        return owner is not each and owner.rank <= each.rank

    def _drop(self, each, i):
        if i < len(each.tokens) // SIZE and self.reserved.get(each.prefix(i)) is each:
            del self.reserved[each.prefix(i)]


@pytest.mark.task("3.3.2")
def test_prefixes_in_any_order(llm):
    check_in_any_order(lambda: AnyPrefixes(llm), examples=80, steps=40)
