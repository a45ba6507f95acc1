"""The bodies of `/tokenize` and `/detokenize`, as vLLM has them."""

from pydantic import BaseModel, ConfigDict


class TokenizeRequest(BaseModel):
    """A text."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class DetokenizeRequest(BaseModel):
    """Token ids."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    tokens: list[int]
