"""The flags that say how tokens are picked and when an answer ends, named as SamplingParams names them."""

from argparse import ArgumentParser, Namespace

from tiny_llm_lab.types import SamplingParams


def add_sampling_arguments(parser: ArgumentParser, max_tokens: int) -> None:
    """How tokens are picked and when an answer ends; the defaults are greedy."""
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="N",
        help="most tokens of an answer (default: %(default)s)",
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="keep the likeliest tokens up to this mass"
    )
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="keep the k likeliest tokens (0 = off)"
    )
    parser.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="drop tokens below this share of the best"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for --temperature above 0")
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be given several times",
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on after an end-of-sequence token")


def sampling_from_args(args: Namespace) -> SamplingParams:
    """The sampling flags; raises UserError for values that make no sense."""
    return SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
    )
