"""The pieces of an answer, in the order in which the model writes them."""

from dataclasses import dataclass
from typing import Literal

PartKind = Literal["reasoning", "content", "call", "arguments"]


@dataclass(frozen=True)
class Part:
    """A piece: "call" names the function of a new call, "arguments" is more JSON text of the last one's.

    Arguments end with the brace that closes them; those of a call that was cut, or that the model wrote
    wrong, are no JSON.
    """

    kind: PartKind
    text: str
