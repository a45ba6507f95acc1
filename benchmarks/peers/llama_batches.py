"""Batches of llama.cpp and of what descends from it, through their low-level functions."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.turns import Array, seconds

# One token of a batch: token, position, sequence, whether its logits are wanted.
Item = tuple[int, int, int, bool]


class Batches:
    """A context of llama.cpp that computes every prompt by itself; `clear` forgets all of them."""

    def __init__(self, api: Any, context: Any, clear: Callable[[], None]) -> None:
        self._api, self._context, self._clear = api, context, clear
        self._length = 0

    def prefill(self, ids: Array) -> list[float]:
        self._clear()
        self._length = last = ids.shape[1]
        return [
            self._run([(int(token), place, row, place == last - 1) for place, token in enumerate(tokens)])
            for row, tokens in enumerate(ids)
        ]

    def step(self, ids: Array) -> float:
        self._length += 1
        return self._run([(int(token), self._length - 1, row, True) for row, token in enumerate(ids)])

    def _run(self, items: Sequence[Item]) -> float:
        batch = self._api.llama_batch_init(len(items), 0, 1)
        batch.n_tokens = len(items)
        for place, (token, position, sequence, wants_logits) in enumerate(items):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = wants_logits
        took_s = seconds(self._decode, batch)
        self._api.llama_batch_free(batch)
        return took_s

    def _decode(self, batch: Any) -> None:
        if failed := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama.cpp returns {failed} for a batch of {batch.n_tokens} tokens")
        getattr(self._api, "llama_synchronize", lambda _: None)(self._context)


def with_room(settings: Any, threads: int, streams: int, longest: int) -> Any:
    """Returns a context's `settings` for `streams` sequences of up to `longest` tokens."""
    cells = -(-longest // 256) * 256  # as llama.cpp rounds up itself, and would complain
    settings.n_ctx = cells * streams
    settings.n_batch = max(longest, streams)  # n_ubatch stays at llama.cpp's own 512
    settings.n_seq_max = streams
    settings.n_threads = settings.n_threads_batch = threads
    return settings
