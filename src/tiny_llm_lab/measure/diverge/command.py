"""`diverge`: the same prompts under two configurations, and whether rounding explains what differs."""

import json
import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import httpx2

from tiny_llm_lab.measure.corpus.mixed import mixed_prompts
from tiny_llm_lab.measure.diverge import compare
from tiny_llm_lab.runtime.console.field_flags import above_zero, at_least_one
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_lines, print_table, stdout_console
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, log, plural, writing
from tiny_llm_lab.serving.openai_client import base_of, failure, first_model, refusal, with_key
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.serving.options.prompts_file import read_prompts
from tiny_llm_lab.types import Prompt, SamplingParams, Tokenizer, UserError

_CURES: Final = ("start it, or correct --b-url", "name one with --b-model")
_TIMEOUT_S: Final = 300.0
_NUM_TOP: Final = 5  # what OpenAI's completions allow


class Server:
    """A server of completions; `transport` is for tests."""

    def __init__(self, url: str, model: str | None, transport: Any = None) -> None:
        """Raise UserError where no server answers, or lists no model."""
        self._headers = with_key(os.environ.get("OPENAI_API_KEY"))
        self._base, self._url = base_of(url), url
        self._transport = transport
        self._model = model or first_model(url, _CURES, self._headers, transport=transport).name

    def score(self, prompt: Sequence[int], answer: Sequence[int]) -> list[compare.ServedStep]:
        """What the server says of each token of `answer` after `prompt`, in one forward pass of its own."""
        body = {
            "model": self._model, "prompt": [*prompt, *answer], "max_tokens": 1, "echo": True,
            "logprobs": _NUM_TOP, "temperature": 0,
        }  # fmt: skip
        response = self._post(body)
        try:
            logprobs = response["choices"][0]["logprobs"]
            span = slice(len(prompt), len(prompt) + len(answer))
            pairs = list(zip(logprobs["token_logprobs"][span], logprobs["top_logprobs"][span], strict=True))
            steps = [compare.ServedStep(float(own), dict(top or {})) for own, top in pairs]
        except (LookupError, TypeError, ValueError):
            steps = []
        if len(steps) != len(answer):
            raise UserError(
                f"{self._url} gives no logprobs of a prompt: it must take echo and logprobs in completions"
            )
        return steps

    def _post(self, body: dict[str, Any]) -> Any:
        try:
            with httpx2.Client(
                headers=self._headers, transport=self._transport, timeout=_TIMEOUT_S
            ) as client:
                answer = client.post(f"{str(self._base).rstrip('/')}/v1/completions", json=body)
        except httpx2.HTTPError as error:
            raise UserError(f"{self._url} does not answer ({failure(error)}): {_CURES[0]}") from None
        if answer.status_code != 200:
            raise UserError(f"{self._url} refused to score ({refusal(answer.status_code, answer.content)})")
        try:
            return answer.json()
        except ValueError:
            return {}


HELP = "Compare two configurations token by token: the same, rounding, or a bug."
EXAMPLES: Final = (
    ("--b '--max-num-batched-tokens 64 --max-num-seqs 8'", "chunks of 64 tokens against the default"),
    ("--grid", "no chunk size may change an answer: ends with 1 if one does"),
    ("--a '--model qwen3-0.6b' --b-url http://127.0.0.1:8000", "ours against a server that scores prompts"),
)
_GRID: Final = tuple(
    f"--max-num-batched-tokens {budget} --long-prefill-token-threshold {most} --max-num-seqs 8"
    for budget in (24, 100, 256)
    for most in (0, 7, 64)
)
_MOST_PROMPTS: Final = 64
_MOST_TOKENS: Final = 512
COLUMNS: Final = (
    Column("prompt", KEEP),
    *(Column(title) for title in ("tokens", "steps")),
    Column("first\nother at", KEEP),
    *(Column(title, KEEP, is_left=True) for title in ("A says", "B says")),
    *(Column(title, KEEP) for title in ("margin", "differs\nthere", "differs\nat most")),
    Column("verdict", KEEP, is_left=True),
)
_WIDEST_TOKEN: Final = 10


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    sides = (
        "model and engine as for serve, and --kernels auto, cpp, mlx or off, all in one quoted argument "
        "(a flag without a value as --a=FLAG)"
    )
    add("--a", default="", metavar="FLAGS", help=f"side A: {sides} (default: none)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--b", metavar="FLAGS", help="side B, the same")
    about = (
        f"side B is A with each of {len(_GRID)} pairs of token budget and threshold, and one line for each"
    )
    where.add_argument("--grid", action="store_true", help=about)
    where.add_argument("--b-url", metavar="URL", help="side B is a server with OpenAI's completions and echo")
    add("--b-model", metavar="NAME", help="model of the server (default: the first that it lists)")
    about = f"prompts, at most {_MOST_PROMPTS}: one a line, a .json list or .jsonl (default: a mixed set)"
    add("--prompts", metavar="FILE", help=about)
    add("--raw", action="store_true", help="send prompts as they are, without chat template")
    about = f"most tokens of an answer, at most {_MOST_TOKENS} (default: %(default)s)"
    add("--max-tokens", type=at_least_one, default=64, metavar="N", help=about)
    about = (
        "most that rounding changes a logit, relative to the step's largest: more is a bug, and so is a "
        f"margin above 2 * max({compare.JUMP} * largest difference before, limit / {compare.JUMP}) where "
        f"answers part (default: {compare.FLOAT32_LIMIT:g} if both sides are float32, else "
        f"{compare.COARSE_LIMIT:g})"
    )
    add("--tolerance", type=above_zero, metavar="N", help=about)
    add("--json", type=Path, metavar="FILE", help="also write every step into this file")


def run(args: Namespace) -> int:
    if args.max_tokens > _MOST_TOKENS:
        raise UserError(f"--max-tokens may be {_MOST_TOKENS} at most, not {args.max_tokens}")
    if args.b_model and not args.b_url:
        raise UserError("--b-model names a server's model: leave it out, or add --b-url")
    side_a = compare.side_args(args.a, "--a")
    sides_b = [] if args.b_url else [f"{args.a} {flags}" for flags in _GRID] if args.grid else [args.b]
    parsed_b = [compare.side_args(flags, "--b") for flags in sides_b]
    server = Server(args.b_url, args.b_model) if args.b_url else None
    with compare.running(side_a) as (loaded, engine, settings):
        prompts = _prompts(args, loaded)
        log(f"A answers {plural(len(prompts), 'prompt')} ...")
        recorded = compare.record(engine, prompts)
        is_exact = compare.is_float32(loaded, settings)
        tokenizer = loaded.checkpoint.tokenizer
    tolerance, results = args.tolerance or compare.COARSE_LIMIT, list[compare.Compared]()
    if server is not None:
        results = _numbered([_served(server, each, tokenizer, tolerance) for each in recorded])
    for flags, side_b in zip(sides_b, parsed_b, strict=True):
        with compare.running(side_b) as (loaded, engine, settings):
            log(f"B scores what A said ({flags.strip() or 'no flags'}) ...")
            followed = compare.follow(engine, prompts, recorded)
            is_close = is_exact and compare.is_float32(loaded, settings)
        tolerance = args.tolerance or (compare.FLOAT32_LIMIT if is_close else compare.COARSE_LIMIT)
        found = [compare.compare(a, b, tolerance) for a, b in zip(recorded, followed, strict=True)]
        results += _numbered(found, flags.strip() if args.grid else "")
        if args.grid:
            verdicts = Counter(each.judgement.verdict for each in found)
            print(f"{flags.strip()}: {', '.join(f'{num} {name}' for name, num in verdicts.items())}")
    bugs = [each for each in results if each.judgement.verdict == "bug"]
    if bugs or not args.grid:
        _print(bugs if args.grid else results, tokenizer, tolerance)
    if args.json is not None:
        _write(args.json, results, tolerance)
    return EXIT_FAILED if bugs else 0


def _prompts(args: Namespace, loaded: Loaded) -> list[Prompt]:
    sampling, tokenizer = SamplingParams(max_tokens=args.max_tokens), loaded.checkpoint.tokenizer
    limit = loaded.model.config.max_position_embeddings
    if args.prompts:
        result = read_prompts(args.prompts, sampling, args.raw)
    else:
        result = mixed_prompts(tokenizer, limit, sampling)
    if len(result) > _MOST_PROMPTS:
        raise UserError(f"{args.prompts} has {len(result)} prompts: give {_MOST_PROMPTS} at most")
    compare.require_room(len(result), args.max_tokens, loaded.model.config.vocab_size)
    contents = [each.content for each in result]
    texts = [as_chat(tokenizer, each, args.raw) if isinstance(each, str) else each for each in contents]
    # Greedy, whatever the file says: only then are the tokens those of the logits.
    return [Prompt(text, sampling) for text in texts]


def _served(server: Server, a: compare.Recorded, tokenizer: Tokenizer, tolerance: float) -> compare.Compared:
    answer = [token for token, _ in a.steps()]
    return compare.compare_served(a, server.score(a.prompt, answer), tokenizer, tolerance)


def _numbered(results: Sequence[compare.Compared], flags: str = "") -> list[compare.Compared]:
    return [replace(each, number=number, flags=flags) for number, each in enumerate(results)]


def _print(results: Sequence[compare.Compared], tokenizer: Tokenizer, tolerance: float) -> None:
    rows, styles = [], []
    for each in results:
        rows.append([str(each.number), *_cells(each, tokenizer), each.judgement.verdict])
        styles.append("bold red" if each.judgement.verdict == "bug" else "")
    print_table(COLUMNS, rows, styles)
    lines = [
        f"prompt {each.number}: {each.judgement.verdict} ({each.judgement.reason})"
        + (f" with {each.flags}" if each.flags else "")
        for each in results
    ]
    print_lines(stdout_console(), ["", *lines, f"limit: {tolerance:g} of a step's largest logit"])


def _cells(result: compare.Compared, tokenizer: Tokenizer) -> list[str]:
    steps, at = result.steps, result.judgement.at
    most = f"{max((step.difference for step in steps), default=0.0):.2g}"
    head = [str(result.num_prompt_tokens), str(len(steps))]
    if at is None:
        return [*head, "", "", "", "", "", most]
    step = steps[at]
    says = [_shown(tokenizer.decode([step.token_a])), _shown(_text(step.token_b, tokenizer))]
    numbers = [f"{step.margin:.2g}", f"{step.difference:.2g}", most]
    return [*head, str(result.num_prompt_tokens + at), *says, *numbers]


def _text(token: str | int, tokenizer: Tokenizer) -> str:
    return token if isinstance(token, str) else tokenizer.decode([token])


def _shown(text: str) -> str:
    quoted = json.dumps(text)
    return quoted if len(quoted) <= _WIDEST_TOKEN else f'{quoted[: _WIDEST_TOKEN - 2]}…"'


def _write(path: Path, results: Sequence[compare.Compared], tolerance: float) -> None:
    prompts = [
        asdict(each.judgement)
        | {name: getattr(each, name) for name in ("number", "flags", "num_prompt_tokens")}
        | {"steps": [asdict(step) for step in each.steps]}
        for each in results
    ]
    with writing(path, "choose another --json"):
        path.write_text(json.dumps({"tolerance": tolerance, "prompts": prompts}, indent=1), encoding="utf-8")
    log(f"wrote {path}")
