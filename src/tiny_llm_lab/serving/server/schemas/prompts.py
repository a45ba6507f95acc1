"""A prompt or several, as OpenAI's APIs take them: text or token ids."""

Prompts = str | list[str] | list[int] | list[list[int]]


def each_prompt(given: Prompts) -> list[str | list[int]]:
    """Each prompt of `given`: a text, or token ids."""
    if isinstance(given, str):
        return [given]
    tokens = [each for each in given if isinstance(each, int)]
    several = [each for each in given if not isinstance(each, int)]
    return [tokens, *several] if tokens else several
