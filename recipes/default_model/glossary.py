"""What the words of the course mean: each term with the names people use for it and a short answer."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Term:
    """A term of the course; `names` read well after "What is" (the first is the usual one)."""

    names: tuple[str, ...]
    meaning: str


def _term(names: str, meaning: str) -> Term:
    return Term(tuple(names.split(" / ")), meaning)


GLOSSARY: Final[tuple[Term, ...]] = (
    _term(
        "a KV cache / the KV cache / a key-value cache",
        "A KV cache keeps the keys and values of all past tokens, so that each new token needs only its own "
        "work.",
    ),
    _term(
        "chunked prefill / prefill in chunks",
        "Chunked prefill cuts a long prompt into chunks and runs decode steps between them, so that a long "
        "prompt does not make the other requests wait.",
    ),
    _term(
        "prefill / the prefill phase",
        "Prefill is the first phase of a request: the model reads the whole prompt and fills the KV cache.",
    ),
    _term(
        "decode / decoding / the decode phase",
        "Decode is the phase after prefill: the model makes one new token for each request in every step.",
    ),
    _term(
        "TTFT / time to first token",
        "TTFT is the time to first token: from the arrival of a request to its first token.",
    ),
    _term(
        "ITL / inter-token latency",
        "ITL is inter-token latency: the gap between two tokens of a request that follow each other.",
    ),
    _term(
        "TPOT / time per output token",
        "TPOT is the mean time per output token after the first one. It hides the long gaps that ITL shows.",
    ),
    _term(
        "continuous batching",
        "In continuous batching a new request takes a slot as soon as an old one is done. Nobody waits for "
        "the whole batch.",
    ),
    _term(
        "a paged KV cache / paged attention",
        "A paged KV cache keeps keys and values in small blocks, and a table says which blocks a request "
        "owns. No memory is lost in large gaps.",
    ),
    _term(
        "prefix caching / a prefix cache",
        "A prefix cache keeps the blocks of past prompts. A new prompt with the same start can use them "
        "again and has less to prefill.",
    ),
    _term(
        "a token budget / the token budget",
        "A token budget says how many tokens one step may take. Decodes come first and prefill gets the "
        "rest.",
    ),
    _term(
        "a scheduler / the scheduler",
        "The scheduler says which requests run in the next step and how many tokens each of them may take.",
    ),
    _term(
        "a token",
        "A token is a small piece of text: a word, a part of a word or a mark. The model reads and writes "
        "tokens.",
    ),
    _term(
        "a tokenizer / the tokenizer",
        "A tokenizer turns text into token numbers, and token numbers back into text.",
    ),
    _term(
        "an embedding",
        "An embedding is a list of numbers that stands for a token. The model has learned one for each "
        "token.",
    ),
    _term(
        "attention / self-attention",
        "In attention each token looks at the tokens before it and takes more from those that matter to it.",
    ),
    _term(
        "grouped query attention / GQA",
        "In grouped query attention several query heads share one head of keys and values. The KV cache "
        "gets smaller.",
    ),
    _term(
        "flash attention",
        "Flash attention works on the scores block by block, so that the large table of scores is never "
        "stored.",
    ),
    _term(
        "RoPE / rotary position embedding",
        "RoPE turns queries and keys by an angle that grows with the position, so that attention sees "
        "distances.",
    ),
    _term(
        "RMSNorm",
        "RMSNorm divides a vector by its root mean square and scales each part by a learned weight.",
    ),
    _term(
        "SwiGLU",
        "SwiGLU is the MLP of the model: one path goes through SiLU and acts as a gate on the other.",
    ),
    _term(
        "softmax",
        "Softmax turns scores into shares that are all positive and add up to one.",
    ),
    _term(
        "a logit / the logits",
        "Logits are the scores that the model gives to each token of the vocabulary for the next place.",
    ),
    _term(
        "greedy decoding / greedy sampling",
        "Greedy decoding always takes the token with the highest score.",
    ),
    _term(
        "temperature / the temperature",
        "The temperature divides the logits. A low one makes the model sure, a high one makes it try more.",
    ),
    _term(
        "top-k sampling / top-k",
        "Top-k sampling keeps the k tokens with the highest scores and draws one of them.",
    ),
    _term(
        "top-p sampling / top-p",
        "Top-p sampling keeps the smallest set of tokens whose shares add up to p, and draws one of them.",
    ),
    _term(
        "speculative decoding",
        "In speculative decoding a small model guesses some tokens and the large model checks them in one "
        "step.",
    ),
    _term(
        "quantization",
        "Quantization stores weights in few bits, in groups with a scale each. The model gets smaller and "
        "faster to read.",
    ),
    _term(
        "a mixture of experts / MoE",
        "In a mixture of experts a router sends each token to a few experts out of many.",
    ),
    _term(
        "a causal mask / the causal mask",
        "A causal mask hides the future: a token may look only at itself and at the tokens before it.",
    ),
    _term(
        "throughput",
        "Throughput is how many tokens all the requests together get in a second.",
    ),
    _term(
        "latency",
        "Latency is how long one request waits. A large batch is good for throughput but may cost latency.",
    ),
    _term(
        "a batch",
        "A batch is a set of requests that the model works on in the same step.",
    ),
    _term(
        "a percentile / p99",
        "Of all values, 99 in a hundred are not larger than p99. It shows the slow cases that a mean hides.",
    ),
    _term(
        "MLX",
        "MLX is an array library made for Apple silicon. It is lazy: nothing is computed until it is needed.",
    ),
    _term(
        "Qwen / Qwen3",
        "Qwen is a family of open language models. I have the same layers as Qwen3, but far fewer of them.",
    ),
    _term(
        "a language model / an LLM",
        "A language model reads some text and says which token is likely to come next.",
    ),
    _term(
        "a transformer",
        "A transformer is a stack of layers. Each has an attention part and an MLP part.",
    ),
    _term(
        "prefill step / the prefill step",
        "The prefill step is how many tokens of a prompt one prefill chunk may take.",
    ),
)
