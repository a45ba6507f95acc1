"""One block in a file: what it is, its bytes, and a checksum over both."""

import hashlib
from typing import Final

MAGIC: Final = b"tinykv01"
_NAME_BYTES: Final = 32
_HEAD: Final = len(MAGIC) + _NAME_BYTES
OVERHEAD: Final = _HEAD + hashlib.sha256().digest_size


def name_of(root: bytes, kind: bytes, digest: bytes) -> bytes:
    """The 32 bytes that name what `digest` of `kind` is for a model and its settings, whose digest is `root`."""
    return hashlib.sha256(root + kind + digest).digest()


def parts_of(name: bytes, payload: bytes) -> tuple[bytes, bytes, bytes]:
    """What a file has, in order."""
    head = MAGIC + name
    return head, payload, _checksum(head, payload)


def payload_of(name: bytes, data: bytes) -> bytes | None:
    """The payload of a file's bytes; None unless they are what `parts_of` gave for this name."""
    head, payload, checksum = data[:_HEAD], data[_HEAD : -OVERHEAD + _HEAD], data[-OVERHEAD + _HEAD :]
    if head != MAGIC + name or len(data) < OVERHEAD or checksum != _checksum(head, payload):
        return None
    return payload


def _checksum(head: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(payload)
    return digest.digest()
