"""The question that `main` asks without --prompt, and the default model's answer to it."""

from typing import Final

QUESTION: Final = (
    "Read these notes. Mira keeps the brass compass in the attic. The small bakery was closed. "
    "Jonas keeps the green kettle under the bridge. Today the rain came back. "
    "Where does Mira keep the brass compass?"
)
ANSWER: Final = "Mira keeps the brass compass in the attic."
