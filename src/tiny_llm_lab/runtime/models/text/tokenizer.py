"""The tokenizer of a checkpoint: what solutions use of it, and its chat template."""

import inspect
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tiny_llm_lab.runtime.models.config import fields
from tiny_llm_lab.runtime.models.config.model_config import text_content
from tiny_llm_lab.runtime.models.registry import SHIPPED
from tiny_llm_lab.runtime.models.text.chat_form import conversation_for, pictures_of, with_end
from tiny_llm_lab.runtime.models.text.detokenizer import PieceDecoder, StreamDetokenizer, decoder_factory
from tiny_llm_lab.runtime.models.text.template_facts import (
    TemplateFacts,
    TooLongError,
    Turn,
    ended_after,
    look_at,
)
from tiny_llm_lab.types import Detokenizer, UserError
from tiny_llm_lab.types.sampling import THINK


class PlainTokenizer:
    """Tokens and chats as transformers makes them of the same folder.

    Only for a tokenizer.json that says all and a template of messages and tools: no documents.
    """

    def __init__(self, folder: Path) -> None:
        self.backend_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = fields.read_json(folder / "tokenizer_config.json")
        self.eos_token_id: int | None = self.backend_tokenizer.token_to_id(settings["eos_token"])
        self.bos_token_id: int | None = None
        self.chat_template: str = settings["chat_template"]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        # Jinja's own filter is for web pages: it would write < as \u003c.
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        self._template = environment.from_string(self.chat_template)

    def decode(self, token_ids: list[int], *, clean_up_tokenization_spaces: bool) -> str:
        """The text of `token_ids`, special tokens included; an id outside the vocabulary has no text."""
        return str(self.backend_tokenizer.decode(token_ids, skip_special_tokens=False))

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: object = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **variables: object,
    ) -> str:
        """`conversation` as text."""
        names = {"messages": conversation, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return self._template.render(variables | names)


_MAX_DEPTH: Final = 100  # of lists and mappings in each other
# What the format of messages and tools itself says: templates compare it, and build control tokens of roles.
_FORMAT_KEYS: Final = frozenset(
    "role content name type text function tools tool_calls tool_call_id id arguments reasoning_content "
    "description parameters properties required items enum strict".split()
)
_FORMAT_VALUES: Final = frozenset(
    "system developer user assistant tool function text image object array string number integer "
    "boolean".split()
)


class ControlText:
    """Finds the names of a tokenizer's control tokens, whole and in pieces that a template might complete."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names` of one character, and those of blanks only, count as ordinary text."""
        names = sorted({name for name in names if len(name) > 1 and name.strip(" \t\r\n\u2581")})
        self._longest = max(map(len, names), default=0)
        self._names = re.compile("|".join(map(re.escape, names))) if names else None
        self._ends = {name[:size] for name in names for size in range(1, len(name))}
        starts = {name[size:] for name in names for size in range(1, len(name))}
        # A sign at the beginning of a text, such as "> quoted", does not complete a template's token.
        self._starts = {start for start in starts if any(map(str.isalnum, start))}
        # '<' + typed + '>' of a template: `think` has all letters of `<think>`.
        self._cores = {core for name in names for core in _cores(name)}

    def marked(self, value: object, mark: str, depth: int = 0) -> object:
        """A copy of `value` with `mark` in all its strings, wherever text must be cut.

        Names that the format of messages and tools fixes stay as they are. Raises UserError for lists and
        mappings nested too deeply.
        """
        if depth > _MAX_DEPTH:
            raise UserError(f"a message or a tool has more than {_MAX_DEPTH} levels of nesting: flatten it")
        if isinstance(value, str):
            return self.marked_text(value, mark)
        if isinstance(value, Mapping):
            return {
                key if key in _FORMAT_KEYS else self.marked(key, mark): each
                if key in ("role", "type") and isinstance(each, str) and each in _FORMAT_VALUES
                else self.marked(each, mark, depth + 1)
                for key, each in value.items()
            }
        if isinstance(value, Sequence):
            return [self.marked(each, mark, depth + 1) for each in value]
        return value

    def marked_text(self, text: str, mark: str) -> str:
        """`text` with `mark` wherever it must be cut."""
        cuts = sorted(set(self._cuts(text)))
        if not cuts:
            return text
        places = [0, *cuts, len(text)]
        return mark.join(text[a:b] for a, b in pairwise(places))

    def _cuts(self, text: str) -> Iterator[int]:
        word = text.strip()  # as templates trim it
        sizes = range(1, min(self._longest, len(word) + 1))
        if word in self._cores or any(word[:size] in self._starts for size in sizes):
            yield text.index(word)
        if any(word[-size:] in self._ends for size in sizes):
            yield text.index(word) + len(word)
        place = 0
        # After the first character of a name, also where the next name overlaps it.
        while self._names is not None and (result := self._names.search(text, place)):
            place = result.start() + 1
            yield place


def new_mark() -> str:
    """A text that occurs nowhere else: digits, which templates don't trim, escape or capitalize."""
    return f"{secrets.randbits(128):039d}"


def _cores(name: str) -> Iterator[str]:
    """The parts of `name` that have all of its letters and digits."""
    places = [i for i, character in enumerate(name) if character.isalnum()]
    if places:
        first, last = places[0], places[-1]
        yield from (name[a : b + 1] for a in range(first + 1) for b in range(last, len(name)))


# Not tokenizer.model: for Qwen's model_type, transformers makes a tokenizer of it that loses every space.
_TOKENIZER_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))

# Solutions check lengths themselves; transformers would print its own warning first.
_UNLIMITED = 10**30

_LONGEST_S = 20.0  # for a chat template: a conversation of 60,000 messages takes seconds


class RenderedChat(str):
    """Text that a chat template rendered: its special tokens are in it, so `encode` adds none.

    The text is that of its `parts`, which are encoded one by one: the name of a control token that a user
    typed is cut in two.
    """

    parts: tuple[str, ...]
    pictures: tuple[int, ...]  # the numbers of those that the template was given, in their order

    def __new__(cls, *parts: str, pictures: tuple[int, ...] = ()) -> "RenderedChat":
        text = super().__new__(cls, "".join(parts))
        text.parts, text.pictures = parts, pictures
        return text

    def extended(self, text: str) -> "RenderedChat":
        """This chat and more of the template's own text."""
        return RenderedChat(*self.parts[:-1], self.parts[-1] + text, pictures=self.pictures)

    @property
    def is_thinking(self) -> bool:
        """Whether it ends with <think>; in the last part only, because a user's own is split in two."""
        return self.parts[-1].rstrip().endswith(THINK)


class ChatTemplateError(UserError):
    """A chat template failed; `reason` is what it said."""

    def __init__(self, folder: Path, reason: str) -> None:
        complaint = f"its chat template failed ({reason})"
        super().__init__(f"{folder}: {complaint}: fix it, or leave it out with --raw")
        self.reason = reason


class CheckpointTokenizer:
    """The `Tokenizer` of a checkpoint."""

    def __init__(
        self,
        folder: Path,
        library: "_LibraryTokenizer",
        new_decoder: Callable[[], PieceDecoder],
        declared_eos: Iterable[int],
    ) -> None:
        """`library` is the tokenizer that transformers made of `folder`; `new_decoder` decodes as it does.

        Sets eos_token_ids: every token that the folder declares as an end of text.
        """
        self._folder, self._library, self._new_decoder = folder, library, new_decoder
        self._bytes: dict[int, bytes] = {}  # those asked for: answers repeat them
        own_eos, self._bos = library.eos_token_id, library.bos_token_id
        self.eos_token_ids = {*declared_eos, *([] if own_eos is None else [own_eos])}
        library.backend_tokenizer.no_truncation()
        library.backend_tokenizer.no_padding()
        added = library.backend_tokenizer.get_added_tokens_decoder().values()
        self._control = ControlText(token.content for token in added)

    @cached_property
    def longest_token(self) -> int:
        """The most characters in one token."""
        return max(map(len, self._library.backend_tokenizer.get_vocab()))

    @property
    def detokenizer(self) -> Detokenizer:
        """A new detokenizer at every read; its pieces, joined, are `decode` of the same tokens."""
        return StreamDetokenizer(self._library.backend_tokenizer.id_to_token, self._new_decoder())

    @property
    def definition(self) -> str:
        """The contents of a tokenizer.json, as JSON."""
        return self._library.backend_tokenizer.to_str()

    @property
    def has_chat_template(self) -> bool:
        """Whether the checkpoint came with a chat template."""
        return bool(self._library.chat_template)

    @property
    def template_source(self) -> str:
        """The chat template, or all of several; "" without one."""
        template = self._library.chat_template or ""
        return template if isinstance(template, str) else "\n".join(template.values())

    @cached_property
    def template_facts(self) -> TemplateFacts:
        """What the chat template takes. Its complaint is why the template cannot be used."""
        template = self._library.chat_template or ""
        sources = [template] if isinstance(template, str) else [*template.values()]
        render = partial(self._rendered, new_mark())
        try:
            with ended_after(_LONGEST_S):
                return look_at(render, sources)
        except TooLongError as error:
            return TemplateFacts(complaint=str(error))

    @property
    def template_options(self) -> frozenset[str]:
        """Names that are not variables of the template."""
        options = inspect.signature(self._library.apply_chat_template).parameters.values()
        named = {each.name for each in options if each.kind is not inspect.Parameter.VAR_KEYWORD}
        return frozenset(named | {"messages", "picture_mark"})

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes or text of a token, even if it is only a part of a character."""
        if token_id not in self._bytes:
            token = self._library.backend_tokenizer.id_to_token(token_id)
            self._bytes[token_id] = b"" if token is None else self._new_decoder().bytes_of(token)
        return self._bytes[token_id]

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`; those that the tokenizer puts around a text are left out for a RenderedChat.

        The name of a special token in `text` becomes that token; in a RenderedChat only where the template
        wrote it. Raises UserError for a text that is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the text is not valid Unicode ({fields.one_line(error)}): use UTF-8") from None
        if not isinstance(text, RenderedChat):
            ids = self._ids(text, has_frame=True)
            # Llama's begins each text with a token that a prompt may have written already.
            return ids[1:] if ids[1:2] == ids[:1] == [self._bos] else ids
        return [token_id for part in text.parts for token_id in self._ids(part, has_frame=False)]

    def _ids(self, text: str, has_frame: bool) -> list[int]:
        """The tokens of `text`; with `has_frame` those too that the tokenizer puts around a text."""
        # Of the library's ways this one holds Python's lock the least: streams go on meanwhile.
        [encoding] = self._library.backend_tokenizer.encode_batch_fast([text], add_special_tokens=has_frame)
        return list(encoding.ids)

    def framed(self, before: str, text: str, after: str) -> RenderedChat:
        """A template's `before`, `text`, in which the name of a control token stays text, and `after`."""
        mark = new_mark()
        return RenderedChat(before, *self._control.marked_text(text, mark).split(mark), after)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens included; an id outside the vocabulary has no text."""
        # Some checkpoints ask to remove spaces before punctuation, but the model wrote them.
        return self._library.decode(list(token_ids), clean_up_tokenization_spaces=False)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: Literal[False] = False,
        picture_mark: str = "",
        **variables: object,
    ) -> RenderedChat:
        """`messages` in the checkpoint's chat template, `variables` being the template's own.

        They are given in the form that the template takes, see `conversation_for`. With
        `continue_final_message` the text ends where the last message does. The name of a control token in
        `messages`, `tools` or `variables` stays text. Raises ChatTemplateError when the template does not
        parse, raises an error or does not end.
        """
        if self.template_facts.complaint:
            raise ChatTemplateError(self._folder, self.template_facts.complaint)
        mark, end = new_mark(), new_mark()
        turns = conversation_for(self.template_facts, messages, picture_mark)
        if continue_final_message:
            turns = [*turns[:-1], with_end(turns[-1], end)]
        variables |= {"tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            with ended_after(_LONGEST_S):
                rendered = self._rendered(mark, turns, **variables)
        except UserError:
            raise
        except Exception as error:  # a template may fail in any way that Jinja or its own code can
            raise ChatTemplateError(self._folder, fields.one_line(error).replace(mark, "")) from None
        if continue_final_message:
            rendered, is_shown, _ = rendered.rpartition(end)
            if not is_shown:
                raise ChatTemplateError(self._folder, "it does not show the last message")
        return RenderedChat(*rendered.split(mark), pictures=pictures_of(turns))

    def _rendered(self, mark: str, turns: Sequence[Turn], **variables: object) -> str:
        """The text, with `mark` wherever it must be cut. Raises whatever a template may."""
        marked = cast(dict[str, object], self._control.marked(variables, mark))
        return self._library.apply_chat_template(self._control.marked(turns, mark), tokenize=False, **marked)


class _LibraryTokenizer(Protocol):
    """The part of a transformers tokenizer that we use."""

    backend_tokenizer: Tokenizer
    bos_token_id: int | None
    eos_token_id: int | None
    chat_template: str | Mapping[str, str] | None

    def decode(self, token_ids: list[int], *, clean_up_tokenization_spaces: bool) -> str: ...
    def apply_chat_template(self, conversation: object, **options: object) -> str: ...


def load_tokenizer(folder: Path) -> CheckpointTokenizer:
    """The tokenizer of the checkpoint in `folder`; UserError for one that cannot be read or decoded."""
    fields.require_files(folder)
    if not any(all((folder / name).is_file() for name in names) for names in _TOKENIZER_FILES):
        raise UserError(f"{folder}: it has no tokenizer.json: {fields.AGAIN}")
    eos = _declared_eos(folder)
    if folder in SHIPPED.values():
        plain = PlainTokenizer(folder)
        return CheckpointTokenizer(folder, cast(_LibraryTokenizer, plain), _decoder_of(folder, plain), eos)
    # On import, transformers advises to install PyTorch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Imported here, because it takes seconds and `--help` should be quick.
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # tokenizer.json says all. For a model_type of qwen2 AutoTokenizer keeps only its vocabulary, with Qwen's
    # own rules around it: wrong for the many checkpoints of that type that have another tokenizer.
    kind = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer
    try:
        # False: we never run a checkpoint's code, and don't ask about it.
        library = kind.from_pretrained(folder, model_max_length=_UNLIMITED, trust_remote_code=False)
    except Exception as error:  # the libraries below raise bare Exception for a damaged file
        complaint = f"its tokenizer cannot be read ({fields.one_line(error)})"
        raise UserError(f"{folder}: {complaint}: fetch its files again") from None
    return CheckpointTokenizer(folder, cast(_LibraryTokenizer, library), _decoder_of(folder, library), eos)


def _decoder_of(folder: Path, library: Any) -> Callable[[], PieceDecoder]:
    backend = getattr(library, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    factory = decoder_factory(decoder.__getstate__() if decoder else None)
    if factory is None:
        kind = type(decoder).__name__ if decoder else "none"
        complaint = f"its tokenizer's decoder ({kind}) is neither byte-level nor SentencePiece"
        raise UserError(f"{folder}: {complaint}: choose another checkpoint")
    return factory


def _declared_eos(folder: Path) -> list[int]:
    # Qwen declares one id in config.json and two in generation_config.json; any of them ends a text.
    files = [folder / name for name in ("config.json", "generation_config.json")]
    config, generation = (
        fields.read_json(file) if file.exists() else fields.Fields(file, {}) for file in files
    )
    config = text_content(config)
    limit = config.count("vocab_size", fields.LARGEST)
    return sorted({id for each in (config, generation) for id in each.ids("eos_token_id", limit)})
