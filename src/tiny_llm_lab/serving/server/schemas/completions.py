"""The body of `/v1/completions`."""

from typing import Final

from pydantic import Field

from tiny_llm_lab.serving.server.errors import ApiError
from tiny_llm_lab.serving.server.schemas.sampling import MAX_COUNT, SamplingFields
from tiny_llm_lab.types import MAX_LOGPROBS

DEFAULT_MAX_TOKENS: Final = 16


class CompletionRequest(SamplingFields):
    """A prompt to be continued as it is, without a chat template; or several."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(None, ge=0, lt=MAX_COUNT)  # null: DEFAULT_MAX_TOKENS
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt: a text, or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [each for each in self.prompt if isinstance(each, int)]
        several = [each for each in self.prompt if not isinstance(each, int)]
        return [tokens, *several] if tokens else several

    def require_supported(self) -> None:
        """Raise ApiError for what the engine does not do."""
        if not self.prompt:
            raise ApiError(400, "prompt is empty: give at least one token", param="prompt")
        if self.suffix:
            raise ApiError(400, "suffix is not supported: the model only continues a text", param="suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError(400, "best_of is not supported: ask for n answers and choose", param="best_of")
