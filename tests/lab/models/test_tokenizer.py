"""A tokenizer is what its files say, whatever model type and class the configuration names."""

import json
import random
import sys

import pytest
from tests.helpers.checkpoints import complaint, copy_of, edit_json
from tests.helpers.processes import finished
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.registry import DEFAULT, SHIPPED, find_folder
from tiny_llm_lab.runtime.models.text.detokenizer import byte_characters
from tiny_llm_lab.runtime.models.text.tokenizer import PlainTokenizer, RenderedChat, load_tokenizer

UNDERLINE = "\u2581"
TEXT = "ab a é"


def sentence_piece():
    """A tokenizer as Llama's: U+2581 for a space, one in front of every text, bytes for the rest."""
    vocabulary = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        UNDERLINE,
        "a",
        "b",
        f"{UNDERLINE}a",
        "ab",
    ]
    tokenizer = Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(vocabulary)},
            [(UNDERLINE, "a"), ("a", "b")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(UNDERLINE), normalizers.Replace(" ", UNDERLINE)]
    )
    steps = [decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return tokenizer


@pytest.mark.parametrize("name", ["random:qwen2.5-shrunk", "random:qwen3-shrunk"])
@pytest.mark.parametrize("kind", ["LlamaTokenizerFast", "Qwen2Tokenizer", "PreTrainedTokenizerFast", ...])
def test_a_qwen_with_the_tokenizer_of_another_family(copy, name, kind):
    folder, written = copy(name), sentence_piece()
    written.save(str(folder / "tokenizer.json"))
    edit_json(folder / "tokenizer_config.json", tokenizer_class=kind, eos_token=..., pad_token=...)
    tokenizer = load_checkpoint(folder).tokenizer
    assert tokenizer.encode(TEXT) == written.encode(TEXT).ids
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_vocabulary_and_merges_are_as_good_as_tokenizer_json(tmp_path):
    content = json.loads((find_folder("default") / "tokenizer.json").read_text())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    text = "Mira keeps the brass compass in the attic."
    whole = load_checkpoint("default").tokenizer
    assert load_tokenizer(tmp_path).encode(text) == whole.encode(text)


def test_a_tokenizer_model_alone_is_not_enough(tmp_path):
    folder = copy_of("random:qwen3-shrunk", tmp_path / "checkpoint")
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    assert complaint(folder) == f"{folder}: it has no tokenizer.json: fetch the whole checkpoint again"


# The shipped tokenizer without transformers, which is the oracle


TEXTS = ["", " ", "\n", "  two  ", "Mira", "user", "é🙂", "a\r\n\tb", "\0"]
TEXTS += ["<|im_end|>", "<|im_start|>assistant\n"]


@pytest.fixture(scope="module")
def theirs():
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(SHIPPED[DEFAULT])


@pytest.fixture(scope="module")
def ours():
    return PlainTokenizer(SHIPPED[DEFAULT])


def test_texts_and_ids_are_those_of_transformers(ours, theirs):
    chance, whole = random.Random(0), load_tokenizer(SHIPPED[DEFAULT])
    assert ours.eos_token_id == theirs.eos_token_id
    for _ in range(300):
        text = "".join(chance.choices(TEXTS, k=chance.randint(0, 6)))
        for adds in (True, False):
            ids = theirs.encode(text, add_special_tokens=adds)
            assert whole.encode(text if adds else RenderedChat(text)) == ids
        ids = chance.choices(range(2100), k=9)  # some of them outside the vocabulary
        want = theirs.decode(ids, clean_up_tokenization_spaces=False)
        assert ours.decode(ids, clean_up_tokenization_spaces=False) == want


def test_chats_are_those_of_transformers(ours, theirs):
    chance = random.Random(1)
    for _ in range(300):
        roles = chance.choices(["system", "user", "assistant"], k=chance.randint(1, 4))
        contents = [chance.choice(TEXTS[4:]) + chance.choice(TEXTS) for _ in roles]
        chat = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
        for way in ({}, {"add_generation_prompt": True}):
            want = theirs.apply_chat_template(chat, tokenize=False, **way)
            assert ours.apply_chat_template(chat, **way) == want, chat


def test_functions_and_calls_are_those_of_transformers(ours, theirs):
    chance = random.Random(2)
    kinds = ({"type": "string"}, {"type": ["string", "null"]}, {"anyOf": []}, {}, True)
    parameters = (None, {}, *({"properties": {word: kind, "b": kind}} for word in TEXTS for kind in kinds))
    for _ in range(200):
        functions = [
            {"name": chance.choice(TEXTS), "description": "x", "parameters": chance.choice(parameters)}
            for _ in range(chance.randint(1, 3))
        ]
        arguments = ({"a": chance.choice(TEXTS), "b": [1, None]}, '{"a": 1}', {})
        calls = [
            {"type": "function", "function": {"name": each["name"], "arguments": chance.choice(arguments)}}
            for each in functions
        ]
        chat = [{"role": chance.choice(["system", "user"]), "content": chance.choice(TEXTS)}]
        chat.append({"role": "assistant", "content": chance.choice(TEXTS), "tool_calls": calls})
        chat.append({"role": "tool", "content": chance.choice(TEXTS)})
        tools = [{"type": "function", "function": each} for each in functions]
        want = theirs.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)
        assert ours.apply_chat_template(chat, tools=tools, add_generation_prompt=True) == want, chat


def test_the_default_model_needs_no_transformers():
    script = (
        "import sys; from tiny_llm_lab.cli.dispatch import main; main(['main', '--max-tokens', '1']); "
        "print('transformers' in sys.modules)"
    )
    done = finished([sys.executable, "-c", script], check=True)
    assert done.stdout.splitlines()[-1] == "False"


# The detokenizer: pieces that join to what `decode` says, none shown too early, each at the same cost


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
    **{
        f"metaspace-{scheme}-{sign}": (
            [word.replace(UNDERLINE, sign) for word in WORDS],
            decoders.Metaspace(sign, prepend_scheme=scheme),
        )
        for scheme in ("always", "first", "never")
        for sign in (UNDERLINE, "_")
    },
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


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_a_token_are_those_within_a_text(kind, tmp_path):
    vocabulary, decoder = KINDS[kind]
    tokenizer = tokenizer_of(tmp_path, vocabulary, decoder)
    a = vocabulary.index("a")
    for token in range(len(vocabulary) + 3):
        said = tokenizer.token_bytes(token).decode(errors="replace")
        assert f"a{said}a" == tokenizer.decode([a, token, a]), token
    tokenizer._new_decoder = None
    assert tokenizer.token_bytes(a) == b"a", "what was asked for before is kept"


@pytest.mark.parametrize("name", ["default", "random:qwen3-shrunk"])
def test_pieces_of_a_loaded_checkpoint_join_to_what_decode_says(name):
    checkpoint = load_checkpoint(name)
    tokenizer = checkpoint.tokenizer
    for ids in random_answers(checkpoint.config.vocab_size, count=300):
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids), ids
    for text in (" world", "  two", "\0", "a\0b", "", " ", "\n", "n't .", "🙂\u0301", "Grüße, 世界"):
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


NEARLY = (SENTENCE_PIECE[:2], [*SENTENCE_PIECE, decoders.Strip(" ", 2, 0)])


OTHER_DECODERS = [
    *((decoders.WordPiece(), "WordPiece"), (None, "none"), (decoders.CTC(), "CTC")),
    *((decoders.Sequence(steps), "Sequence") for steps in NEARLY),
]


@pytest.mark.parametrize(("decoder", "kind"), OTHER_DECODERS)
def test_a_decoder_of_another_kind_is_refused(decoder, kind, tmp_path):
    folder = copy_of("random:qwen3-shrunk", tmp_path / "checkpoint")
    backend = Backend(models.BPE({"a": 0}, []))
    if decoder is not None:
        backend.decoder = decoder
    backend.save(str(folder / "tokenizer.json"))
    complained = f"its tokenizer's decoder ({kind}) is neither byte-level nor SentencePiece"
    assert complaint(folder) == f"{folder}: {complained}: choose another checkpoint"


def llama_like(folder):
    """A tokenizer that begins texts as Llama 3's does, with a template that writes the same token."""
    begin, file = "<|begin_of_text|>", folder / "tokenizer.json"
    content = json.loads(file.read_text())
    names = {token: name for name, token in content["model"]["vocab"].items()}
    names[259] = begin
    content["model"]["vocab"] = {name: token for token, name in names.items()}
    content["added_tokens"].append({**content["added_tokens"][0], "id": 259, "content": begin})
    special, text = {"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    content["post_processor"] = {
        **{"type": "TemplateProcessing", "single": [special, text], "pair": [special, text]},
        "special_tokens": {begin: {"id": begin, "ids": [259], "tokens": [begin]}},
    }
    file.write_text(json.dumps(content))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{{ bos_token }}" + settings["chat_template"]
    edit_json(folder / "tokenizer_config.json", bos_token=begin, chat_template=template)
    return load_tokenizer(folder)


def test_a_text_begins_once_whoever_writes_it(copy):
    tokenizer = llama_like(copy("random:llama-shrunk"))
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "<|begin_of_text|>hi"}])
    long = json.loads((tokenizer._folder / "tokenizer.json").read_text())
    long["truncation"] = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    (tokenizer._folder / "tokenizer.json").write_text(json.dumps(long))
    assert len(load_tokenizer(tokenizer._folder).encode("a" * 90)) == 91, "it is never cut"
    cases = {"hi": 1, "<|begin_of_text|>hi": 1, "": 1, "hi<|begin_of_text|>": 2, chat: 1}
    for text, count in cases.items():
        ids = tokenizer.encode(text)
        assert ids[0] == 259 and ids.count(259) == count, text
