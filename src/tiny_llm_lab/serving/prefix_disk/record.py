"""One block in a file: what it is, its bytes, and a checksum over both."""

import hashlib
from typing import Final

Bytes = bytes | memoryview
MAGIC: Final = b"tinykv01"
_NAME_BYTES: Final = 32
_HEAD: Final = len(MAGIC) + _NAME_BYTES
OVERHEAD: Final = _HEAD + hashlib.sha256().digest_size


def name_of(root: bytes, kind: bytes, digest: bytes) -> bytes:
    """32 bytes that name a file: `kind` says of what, `digest` of which prefix, `root` of which model."""
    return hashlib.sha256(root + kind + digest).digest()


def parts_of(name: bytes, payload: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """What a file has, in order."""
    head = MAGIC + name
    return head, payload, _checksum(head, payload)


def payload_of(name: bytes, data: bytes) -> Bytes | None:
    """The payload of a file's bytes; None unless they are what `parts_of` gave for this name."""
    end = len(data) - OVERHEAD + _HEAD
    head, payload = data[:_HEAD], memoryview(data)[_HEAD:end]
    is_whole = len(data) >= OVERHEAD and head == MAGIC + name and data[end:] == _checksum(head, payload)
    return payload if is_whole else None


def _checksum(head: bytes, payload: Bytes) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(payload)
    return digest.digest()
