"""The printable characters with which byte-level BPE writes the bytes of a token."""


def byte_characters() -> list[str]:
    """The 256 bytes in order, each as its character: itself if printable, else one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
