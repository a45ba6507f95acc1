"""The detokenizer: pieces that join to what `decode` says, none shown too early, each at the same cost."""

import json
import random

import pytest
from tests.helpers.checkpoints import complaint, copy_of
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.text.detokenizer import byte_characters
from tiny_llm_lab.runtime.models.text.tokenizer import load_tokenizer

UNDERLINE = "\u2581"
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["a", "é", "世", " ", "\n", "\0", "\ufffd", f"{UNDERLINE}a", UNDERLINE, f"{UNDERLINE}{UNDERLINE}b"]
ODD = ["<0xZZ>", "<0x4>", "x<0x41>"]
REPLACE = decoders.Replace(UNDERLINE, " ")
SENTENCE_PIECE = [REPLACE, decoders.ByteFallback(), decoders.Fuse()]

# A vocabulary and the decoder that makes text of it, for every kind that is loaded.
KINDS = {
    "bytes": ([*byte_characters(), "Ġa", "Ġ", "ä½łå", "<|end|>"], decoders.ByteLevel()),
    "sentencepiece": ([*BYTE_TOKENS, *WORDS, *ODD], decoders.Sequence(SENTENCE_PIECE)),
    "sentencepiece-strip": (
        [*BYTE_TOKENS, *WORDS, *ODD],
        decoders.Sequence([*SENTENCE_PIECE, decoders.Strip(" ", 1, 0)]),
    ),
    "metaspace": (WORDS, decoders.Metaspace()),
    "metaspace-never": (WORDS, decoders.Metaspace(prepend_scheme="never")),
}


def tokenizer_of(folder, vocabulary, decoder):
    """A tokenizer of these tokens and three added ones, loaded from the files it was written to."""
    backend = Backend(models.BPE({token: i for i, token in enumerate(vocabulary)}, []))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens([AddedToken("<|x é|>", special=True)])
    backend.add_tokens([AddedToken(" of two words"), AddedToken("ß")])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_tokenizer(folder)


def pieces(tokenizer, ids):
    """What is shown after each token, and at the end."""
    stream, shown = tokenizer.detokenizer, []
    for token in ids:
        stream.add_token(token)
        shown.append(stream.last_segment)
    stream.finalize()
    return [*shown, stream.last_segment]


def random_answers(size, count, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(size) for _ in range(rng.choice([1, 2, 3, 5, 8, 40]))] for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_join_to_what_decode_says(kind, tmp_path):
    vocabulary, decoder = KINDS[kind]
    tokenizer = tokenizer_of(tmp_path, vocabulary, decoder)
    # Ids of added tokens, and two that the vocabulary does not have, as models with a padded head draw them.
    for ids in random_answers(len(vocabulary) + 5, count=1000):
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids), ids


@pytest.mark.parametrize("name", ["default", "random:qwen3-shrunk"])
def test_pieces_of_a_loaded_checkpoint_join_to_what_decode_says(name):
    checkpoint = load_checkpoint(name)
    tokenizer = checkpoint.tokenizer
    for ids in random_answers(checkpoint.config.vocab_size, count=300):
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids), ids


@pytest.mark.parametrize(
    "text", [" world", "  two", "\0", "a\0b", "", " ", "\n", "n't .", "🙂\u0301", "Grüße, 世界"]
)
@pytest.mark.parametrize("name", ["default", "random:qwen3-shrunk"])
def test_a_text_comes_back_as_it_was(name, text):
    tokenizer = load_checkpoint(name).tokenizer
    ids = tokenizer.encode(text)
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == text


def test_a_character_is_shown_with_its_last_byte():
    tokenizer = load_checkpoint("random:qwen3-shrunk").tokenizer
    assert pieces(tokenizer, "aé世b".encode()) == ["a", "", "é", "", "", "世", "b", ""]
    # Bytes that begin no character are no longer waited for; at the end nothing is.
    assert pieces(tokenizer, b"\xe4\xb8a") == ["", "", "\ufffda", ""]
    assert pieces(tokenizer, b"\xe4\xb8") == ["", "", "\ufffd"]


def test_a_run_of_byte_tokens_is_shown_when_it_has_ended(tmp_path):
    vocabulary, decoder = KINDS["sentencepiece"]
    tokenizer = tokenizer_of(tmp_path, vocabulary, decoder)
    a = vocabulary.index("a")
    assert pieces(tokenizer, [*"世".encode(), a]) == ["", "", "", "世a", ""]
    assert pieces(tokenizer, [*"世".encode(), 0xFF, a]) == ["", "", "", "", "\ufffd" * 4 + "a", ""]


def test_a_token_costs_the_same_however_many_came_before(tmp_path):
    """Counted, not timed: each token is looked up once, and nothing is decoded again."""
    tokenizer = tokenizer_of(tmp_path, *KINDS["bytes"])
    library = tokenizer._library
    looked_up = []

    class Counting:
        def id_to_token(self, token):
            looked_up.append(token)
            return library.backend_tokenizer.id_to_token(token)

    class Library:
        backend_tokenizer = Counting()

    tokenizer._library = Library()
    ids = [0xE4, 0xB8] * 500  # never a whole character: all that could be decoded again and again
    pieces(tokenizer, ids)
    assert looked_up == ids


@pytest.mark.parametrize(
    ("decoder", "kind"), [(decoders.WordPiece(), "WordPiece"), (None, "none"), (decoders.CTC(), "CTC")]
)
def test_a_decoder_of_another_kind_is_refused(decoder, kind, tmp_path):
    folder = copy_of("random:qwen3-shrunk", tmp_path / "checkpoint")
    backend = Backend(models.BPE({"a": 0}, []))
    if decoder is not None:
        backend.decoder = decoder
    backend.save(str(folder / "tokenizer.json"))
    complained = f"its tokenizer's decoder ({kind}) is neither byte-level nor SentencePiece"
    assert complaint(folder) == f"{folder}: {complained}: choose another checkpoint"
