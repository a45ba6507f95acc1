"""Trains the byte-level BPE tokenizer of the default model on generated text."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tiny_llm_lab.measure.corpus.recall import TURN_END, make_filler
from tiny_llm_lab.measure.corpus.words import ALL_SLOT_WORDS, NAMES

from .chat_markup import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS
from .smalltalk import make_small_talk
from .stories import make_story

VOCABULARY_SIZE: Final = 2048
MAX_POSITIONS: Final = 4096

# Qwen's splitting rule: digits one by one, a word with the space before it.
SPLIT_RULE: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(seed: int) -> Tokenizer:
    """A tokenizer in which every word of the lists is one token, and any bytes survive a round trip."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_RULE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(random.Random(f"tokenizer {seed}")), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json and the files around it as transformers and mlx-lm read them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_POSITIONS,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": list(SPECIAL_TOKENS),
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


_MORE_FRAMES: Final = "Notes: Question: The notes do not say."


def _texts(rng: random.Random) -> Iterator[str]:
    # BPE keeps what is frequent, so the words that must be whole are simply said very often.
    for _ in range(400):
        yield " ".join(["", *NAMES, *ALL_SLOT_WORDS])
        yield "\n".join(NAMES)
        yield "user\nassistant\nsystem\nWhere does keep the? What keeps the. " + _MORE_FRAMES
    for _ in range(4000):
        yield make_story(rng).text
        turn = make_small_talk(rng)
        yield turn.user
        yield turn.assistant
        yield make_filler(rng)
