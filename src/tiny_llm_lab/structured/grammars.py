"""Forms of answers, compiled for one tokenizer."""

from tiny_llm_lab.types import LogitsProcessor, SamplingParams, StructuredOutputs, Tokenizer


class Grammars:
    """Compiles forms for one tokenizer, of which a model computes `vocab_size` logits."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Nothing is built before the first form."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size

    def processor(self, form: StructuredOutputs) -> LogitsProcessor:
        """Bars, for one request, every token that does not continue `form`.

        May take a second: not to be called where others wait. Raises UserError for a form that cannot be
        used.
        """
        raise NotImplementedError


def processors_for(sampling: SamplingParams, grammars: Grammars) -> tuple[LogitsProcessor, ...]:
    """The processors that a request of `sampling` needs; as `Grammars.processor`."""
    form = sampling.structured_outputs
    return () if form is None else (grammars.processor(form),)
