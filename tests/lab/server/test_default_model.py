"""The shipped model behind `/v1/completions`: the answers are the engine's, whatever the way they take."""

from concurrent.futures import ThreadPoolExecutor

from tiny_llm_lab import LLM, SamplingParams

PROMPTS = ["The sun", "A dog and a cat", "Once upon", "In the"]


def test_the_answers_are_those_of_the_engine(client):
    with LLM() as llm:
        expected = [each.text for each in llm.generate(PROMPTS, SamplingParams(max_tokens=24))]

    def streamed(prompt):
        stream = client.completions.create(model="default", prompt=prompt, max_tokens=24, stream=True)
        return "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(streamed, PROMPTS)) == expected
    whole = client.completions.create(model="default", prompt=PROMPTS, max_tokens=24)
    assert [each.text for each in whole.choices] == expected
    scored = client.completions.create(model="default", prompt=PROMPTS, max_tokens=24, logprobs=0).choices
    assert whole.usage.completion_tokens == sum(len(each.logprobs.tokens) for each in scored)


def test_logprobs(client):
    asked = {"model": "default", "prompt": "The sun", "max_tokens": 4, "temperature": 1, "seed": 3}
    (choice,) = client.completions.create(**asked, logprobs=3).choices
    columns = choice.logprobs
    assert "".join(columns.tokens) == choice.text
    rows = zip(columns.tokens, columns.token_logprobs, columns.top_logprobs, strict=True)
    for idx, (token, logprob, top) in enumerate(rows):
        assert top[token] == logprob <= max(top.values()) <= 0
        assert 3 <= len(top) <= 4
        assert columns.text_offset[idx] == len("".join(columns.tokens[:idx]))


def test_offsets_count_characters_and_not_their_parts(client):
    told = {"model": "default", "max_tokens": 0, "logprobs": 1, "echo": True}
    done = client.completions.create(prompt="a🙂b𝄞c", **told).choices[0]
    starts = list(zip(done.logprobs.tokens, done.logprobs.text_offset, strict=True))
    assert any("\ufffd" in token for token, _ in starts)
    assert all(done.text.startswith(token, at) for token, at in starts if "\ufffd" not in token)
    assert {done.text[at] for token, at in starts if "\ufffd" in token} == {"🙂", "𝄞"}


def test_the_prompt_has_logprobs_too(client):
    told = {"model": "default", "max_tokens": 2, "logprobs": 1, "echo": True}
    done = client.completions.create(prompt="The sun is warm", **told).choices[0]
    assert done.text.startswith("The sun is warm")
    assert "".join(done.logprobs.tokens) == done.text
    assert done.logprobs.token_logprobs[0] is None and done.logprobs.top_logprobs[0] is None
    assert all(logprob <= 0 for logprob in done.logprobs.token_logprobs[1:])
    stream = client.completions.create(prompt="The sun is warm", stream=True, **told)
    parts = [chunk.choices[0] for chunk in stream]
    assert "".join(part.text for part in parts) == done.text
    assert [token for part in parts for token in part.logprobs.tokens] == done.logprobs.tokens
    alone = client.completions.create(prompt="The sun is warm", **{**told, "max_tokens": 0}).choices[0]
    assert alone.logprobs.tokens == done.logprobs.tokens[: len(alone.logprobs.tokens)]
    assert alone.text == "The sun is warm"


def test_a_prompt_that_was_seen_is_cached(client):
    prompt = [5 + number for number in range(40)]
    for expected in (0, 32):
        usage = client.completions.create(model="default", prompt=prompt, max_tokens=1, n=2).usage
        assert usage.prompt_tokens_details.cached_tokens == expected
