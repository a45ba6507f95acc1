"""A tokenizer for models that never learned one: a token for every byte, and a word for every other id."""

import json
from pathlib import Path

from tiny_llm_lab.runtime.models.random.shapes import IM_END, TOKENIZER_SIZE
from tiny_llm_lab.runtime.models.text.byte_level import byte_characters

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # the ids after the bytes
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_SYLLABLES = [first + second for first in "bdfghjklmnprstvz" for second in "aeiou"]


def write_byte_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write the tokenizer files of a vocabulary of `vocab_size` ids.

    Text is encoded as its bytes. The ids above them and the special tokens never come out of an
    encoder, but out of a model: each stands for a made-up word, so that any answer can be read.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    names = [*byte_characters(), *SPECIAL_TOKENS, *map(_word, range(vocab_size - TOKENIZER_SIZE))]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": names[IM_END],
        "pad_token": SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def _word(index: int) -> str:
    """A space (written Ġ) and three syllables or more: no two indices give the same word."""
    word = ""
    while index or len(word) < 6:
        index, syllable = divmod(index, len(_SYLLABLES))
        word += _SYLLABLES[syllable]
    return "Ġ" + word
