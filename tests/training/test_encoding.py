"""The fast encoder of the training data against the tokenizer that ships. Needs PyTorch installed."""

import random
from pathlib import Path

import tokenizers

import tiny_llm_lab.models
from tiny_llm_lab.corpus.notes import make_notes
from tiny_llm_lab.corpus.smalltalk import make_small_talk
from tiny_llm_lab.corpus.stories import make_story
from tiny_llm_lab.training.encoding import CorpusEncoder

FOLDER = Path(tiny_llm_lab.models.__file__).parent / "default"


def test_the_fast_encoder_of_training_agrees_with_the_tokenizer() -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    fast = CorpusEncoder(tokenizer)
    rng = random.Random(9)
    for _ in range(300):
        turn, story = make_small_talk(rng), make_story(rng)
        notes = make_notes(rng, 100, fast.count, strange_share=0.3)
        for text in (turn.user, turn.assistant, story.request, story.text, notes.text, "user\n", "\n"):
            assert fast.encode(text) == tokenizer.encode(text).ids
