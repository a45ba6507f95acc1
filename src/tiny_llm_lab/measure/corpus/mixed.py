"""The prompts of `batch-main` without --prompts: small talk mixed with long notes."""

from typing import Final

from tiny_llm_lab.measure.corpus.recall import recall_questions
from tiny_llm_lab.serving.options.prompts_file import drawing_apart
from tiny_llm_lab.types import Prompt, SamplingParams, Tokenizer

_SHORT_PROMPTS: Final = (
    "Hello",
    "Tell me a story about a fox.",
    "What is chunked prefill?",
    "Who are you?",
    "Tell me a short story about a lamp.",
    "What is the difference between TTFT and ITL?",
)
# Notes of these lengths come between the short prompts, at these places.
_NOTES: Final = ((2, 1000), (5, 400))


def mixed_prompts(tokenizer: Tokenizer, limit: int, sampling: SamplingParams) -> list[Prompt]:
    """Short small talk mixed with long notes; the default model can answer all of them."""
    texts = list(_SHORT_PROMPTS)
    for place, num_tokens in _NOTES:
        length = min(num_tokens, limit // 2)
        [question] = recall_questions(seed=place, count=1, context_tokens=length, encode=tokenizer.encode)
        texts.insert(place, question.user)
    return [Prompt(text, drawing_apart(sampling, idx)) for idx, text in enumerate(texts)]
