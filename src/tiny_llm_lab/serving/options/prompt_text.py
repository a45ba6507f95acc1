"""What a prompt may be, wherever it comes from: a flag, stdin or a file."""

from tiny_llm_lab.types import UserError


def cleaned(text: str, raw: bool, source: str) -> str:
    """`text` without the blanks around it; `raw` keeps them, but for one line break at the end.

    A text of blanks alone becomes empty. Raises UserError when `source` held bytes that are not UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # Python reads such bytes, and half of a \\ud83d pair in JSON, as surrogates
        raise UserError(f"{source} is not UTF-8 text: convert it first") from None
    return text.removesuffix("\n") if raw and text.strip() else text.strip()
