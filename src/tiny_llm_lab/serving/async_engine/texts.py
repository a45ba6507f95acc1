"""Who makes the text of an answer: the engine, or whoever reads it, on another core than the steps."""

from dataclasses import replace
from typing import Final

from tiny_llm_lab.types import Detokenizer, EngineOutput, SamplingParams


class EngineText:
    """The engine makes it."""

    def asked(self, sampling: SamplingParams) -> SamplingParams:
        """What the engine is asked for."""
        return sampling

    def filled(self, output: EngineOutput) -> EngineOutput:
        """An output with its text; must see all outputs of the answer, in their order."""
        return output


ENGINE_TEXT: Final = EngineText()


class ReaderText(EngineText):
    """The reader makes it, of tokens. Events and the completion have none."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        """`detokenizer` is new."""
        self._detokenizer = detokenizer

    def asked(self, sampling: SamplingParams) -> SamplingParams:
        return replace(sampling, detokenize=False)

    def filled(self, output: EngineOutput) -> EngineOutput:
        for token in output.token_ids:
            self._detokenizer.add_token(token)
        if output.completion is not None:
            self._detokenizer.finalize()
        return replace(output, text=self._detokenizer.last_segment)
