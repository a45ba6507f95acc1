"""The shipped tokenizer without transformers, which is the oracle."""

import random
import subprocess
import sys

import pytest

from tiny_llm_lab.runtime.models.registry import DEFAULT, SHIPPED
from tiny_llm_lab.runtime.models.text.tokenizer import PlainTokenizer

TEXTS = [
    "",
    " ",
    "\n",
    "  two  ",
    "Mira",
    "user",
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "é🙂",
    "a\r\n\tb",
    "\0",
]


@pytest.fixture(scope="module")
def theirs():
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(SHIPPED[DEFAULT])


@pytest.fixture(scope="module")
def ours():
    return PlainTokenizer(SHIPPED[DEFAULT])


def test_texts_and_ids_are_those_of_transformers(ours, theirs):
    chance = random.Random(0)
    assert ours.eos_token_id == theirs.eos_token_id
    for _ in range(300):
        text = "".join(chance.choices(TEXTS, k=chance.randint(0, 6)))
        for adds in (True, False):
            ids = theirs.encode(text, add_special_tokens=adds)
            assert ours.encode(text, add_special_tokens=adds) == ids
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
