"""Keys and values of a layer that nothing reads for a while, in 8 bits."""

from tiny_llm_lab.types import RequestKvCache


class PackedKv:
    """What one layer's cache stored, as int8 numbers and float32 scales.

    All tokens of a paused prompt are there, so a scale may span them. Keys have one scale for each head and
    dimension: a few dimensions of keys are far larger than the others at every token. Values have one for
    each head and token. (KIVI, arXiv 2402.02750.)
    """

    def __init__(self, layer: RequestKvCache) -> None:
        """Pack what `layer` stores (keys and values [1, G, S, D]) and give the layer's memory back.

        With scale = max |x| / 127 of the numbers that share it, each is stored as x / scale rounded to the
        nearest integer, and is off by at most scale / 2. Numbers that are all 0 have scale 0 and stay 0.
        Sets nbytes, what the packed form takes, and unpacked_nbytes, what the tokens took before.
        Raises ValueError when the layer is empty.
        """
        raise NotImplementedError("task 2.8.4")

    def restore(self, layer: RequestKvCache) -> None:
        """Append the keys and values to `layer`, which is empty, in the dtype they had; materialise it."""
        raise NotImplementedError("task 2.8.4")
