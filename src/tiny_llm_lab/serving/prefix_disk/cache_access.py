"""What the folder needs of the reference's engine, beyond the protocols of every solution."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tiny_llm_lab.types import ModelConfig, SchedulerConfig
from tiny_llm_lab.types.computing.paged import PagedCache
from tiny_llm_lab.types.scheduling.serving import BlockPool


class Key(Protocol):
    """The key of a full block."""

    digest: bytes
    parent: "Key | None"


class Pool(BlockPool, Protocol):
    """Blocks that requests share."""

    def share(self, blocks: Sequence[int]) -> None: ...


class Snapshots(Protocol):
    """A hybrid's; of another model, which has a block's states in its block, none are ever added."""

    on_add: Callable[[Key, int, bool], None] | None

    def has(self, key: Key) -> bool: ...
    def take(self) -> int: ...
    def add(self, key: Key, number: int, is_passing: bool) -> None: ...


class Cache(Protocol):
    on_insert: Callable[[Key], None] | None
    pool: Pool

    @property
    def snapshots(self) -> Snapshots: ...
    def keys(self, token_ids: Sequence[int], salt: str = "") -> list[Key]: ...
    def find(self, key: Key) -> tuple[Key, int] | None: ...
    def insert(self, key: Key, block: int) -> None: ...


class Request(Protocol):
    request_id: str
    prompt_token_ids: Sequence[int]
    skip_reading_prefix_cache: bool
    cache_salt: str


class Queue(Protocol):
    waiting: list[Request]
    running: list[Request]

    def readmit(self, sequence: Request) -> None: ...
    def remove(self, sequence: Request) -> None: ...


class Scheduler(Protocol):
    @property
    def queue(self) -> Queue: ...


class Model(Protocol):
    @property
    def config(self) -> ModelConfig: ...


class Core(Protocol):
    """An `EngineCore`; after a step that failed it has another cache and another scheduler."""

    config: SchedulerConfig
    scheduler: Scheduler
    prefix_cache: Cache
    kv_cache: PagedCache
    model: Model


def find_chain(cache: Cache, keys: Sequence[Key]) -> list[int]:
    """The blocks of the first keys, up to the first that is not found."""
    blocks: list[int] = []
    for i, key in enumerate(keys):
        if (found := cache.find(key)) is None:
            break
        blocks.append(found[1])
        # Comparing the next key ends at the parent that both have.
        if i + 1 < len(keys):
            keys[i + 1].parent = found[0]
    return blocks
