"""A layer's keys and values in 8 bits, for a prompt that is paused."""

from tiny_llm_lab.types import RequestKvCache


class PackedKv:
    """What one layer's cache stored, as int8 numbers and float32 scales.

    No token of a paused prompt is missing, so a scale may span all of them. Keys have one scale for each head
    and dimension, because a few dimensions of keys are far larger than the others at every token. Values have
    one scale for each head and token. (KIVI, arXiv 2402.02750.)
    """

    def __init__(self, layer: RequestKvCache) -> None:
        """Pack what `layer` stores (keys and values [1, G, S, D]) and free the layer's memory.

        scale is max |x| / 127 of the numbers that share it. Each number is stored as x / scale rounded to the
        nearest integer, and is off by at most scale / 2. Numbers that are all 0 have scale 0 and stay 0.
        Sets nbytes, the size of the packed form, and unpacked_nbytes, the size of the tokens before.
        Raises ValueError if the layer is empty.
        """
        raise NotImplementedError("task 2.8.4")

    def restore(self, layer: RequestKvCache) -> None:
        """Append the keys and values, in their original dtype, to the empty `layer`; materialise it."""
        raise NotImplementedError("task 2.8.4")
