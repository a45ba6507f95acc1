"""Chooses a replica: the one with the prefix in its cache, unless it is overloaded."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tiny_llm_lab.runtime.console.input_file import json_object

PREFIX_CHARS: Final = 512


def prefix_key(body: bytes, num_chars: int = PREFIX_CHARS) -> str | None:
    """The first characters or token ids of a request's prompt; None for a body without a prompt."""
    try:
        return _beginning(json_object(body) or {}, num_chars)
    except RecursionError:
        return None


def _beginning(request: dict[str, Any], room: int) -> str | None:
    parts = list[str]()
    for name in ("instructions", "prompt", "messages", "input"):
        for piece in _pieces(request.get(name)):
            parts.append(piece[:room])
            room -= len(parts[-1])
            if room <= 0:
                break
    return "\n".join(parts) or None


def _pieces(value: object) -> Iterator[str]:
    """The strings and numbers inside of a JSON value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, list):
        for each in value:
            yield from _pieces(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _pieces(each)


@dataclass(frozen=True)
class Overload:
    """When a replica has too many requests for more of its own prefixes."""

    factor: float = 1.5  # times the mean over all replicas
    slack: int = 4  # requests above that

    def is_overloaded(self, queue_len: int, queue_lens: Mapping[str, int]) -> bool:
        mean = sum(queue_lens.values()) / len(queue_lens)
        return queue_len > self.factor * mean + self.slack


def rank_replicas(
    key: str | None, queue_lens: Mapping[str, int], overload: Overload = Overload()
) -> list[str]:
    """The replicas, best first; `queue_lens` is their ongoing requests, by id.

    Rendezvous hashing of `key`: every router prefers the same replica without asking others, and a replica
    that comes or goes moves only its own keys. Overloaded replicas come last; without a key the shortest
    queue is first.
    """

    def order(replica: str) -> tuple[bool, int]:
        return overload.is_overloaded(queue_lens[replica], queue_lens), -_score(key or "", replica)

    if key is None:
        return sorted(queue_lens, key=lambda replica: (queue_lens[replica], replica))
    return sorted(queue_lens, key=order)


def _score(key: str, replica: str) -> int:
    text = f"{replica}\0{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
