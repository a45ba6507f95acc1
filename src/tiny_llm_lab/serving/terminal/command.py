"""`chat`: talk with a model in the terminal."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
from argparse import ArgumentParser, Namespace
from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tiny_llm_lab.runtime.console.answer_writer import AnswerWriter
from tiny_llm_lab.runtime.console.talk import log, show
from tiny_llm_lab.runtime.models.greeting import greeting
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.serving.building import build_engine
from tiny_llm_lab.serving.llm import LLM
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.serving.options.chat_template import Turns, has_template
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.serving.options.picture_chat import file_bytes
from tiny_llm_lab.serving.options.prompts_file import cleaned
from tiny_llm_lab.serving.options.sampling_options import add_sampling_arguments, sampling_from_args
from tiny_llm_lab.types import SamplingParams, SchedulerConfig, UserError

if TYPE_CHECKING:
    from tiny_llm_lab.serving.terminal.server_answers import ServerAnswers

    Answers: TypeAlias = "ServerAnswers | EngineAnswers"


class EngineAnswers:
    """One request at a time; the earlier turns of a conversation are in the prefix cache."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._numbers = itertools.count()

    def stream(self, messages: Turns, sampling: SamplingParams) -> Generator[str, None, None]:
        """Yield the answer to a conversation piece by piece.

        Ctrl-C takes effect between two steps, as KeyboardInterrupt, so that the engine keeps its cache.
        Raises UserError for a conversation that is too long.
        """
        name, engine = f"turn-{next(self._numbers)}", self._llm.engine
        prompt = self._llm.asked(messages, sampling)
        engine.add(name, prompt.content, prompt.sampling, pictures=prompt.pictures)
        is_interrupted = False

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal is_interrupted
            is_interrupted = True

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            while engine.has_requests and not is_interrupted:
                outputs = engine.step()
                for each in () if outputs else engine.core.scheduler.running:
                    show(f"prompt: {each.num_computed_tokens:,} of {each.num_tokens:,} tokens")
                yield from (output.text for output in outputs)
        finally:
            signal.signal(signal.SIGINT, before)
            engine.abort(name)
        if is_interrupted:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Free the engine's memory."""
        self._llm.release()


HELP = "Talk with a model in the terminal."
EXAMPLES: Final = (
    ("--model qwen3-0.6b --temperature 0.7", "talk with a model from the hub"),
    ("--server http://127.0.0.1:8000", "talk with any OpenAI-compatible server"),
)
_WORDS: Final = (
    "/clear forgets the conversation · /image FILE adds a picture · /exit or Ctrl-D ends · "
    "Ctrl-C ends an answer"
)


def add_arguments(parser: ArgumentParser) -> None:
    model_options.add_model_arguments(parser)
    model_options.add_kernel_arguments(parser)
    about = "ask this OpenAI-compatible server; --model is then a name that the server lists"
    parser.add_argument("--server", metavar="URL", help=about)
    parser.add_argument("--system", metavar="TEXT", help="system message at the start of the conversation")
    add_sampling_arguments(parser, max_tokens=512)


def run(args: Namespace) -> int:
    sampling = sampling_from_args(args)
    start = [{"role": "system", "content": cleaned(args.system, False, "--system")}] if args.system else []
    with contextlib.closing(_answers(args)) as answers:
        names = [args.model] if args.server is None else []
        _talk(answers, start, sampling, _greet(names) if sys.stdin.isatty() else {})
    return 0


def _greet(names: Sequence[str]) -> Mapping[str, str]:
    """Print what the model can do; return two questions by the number that asks each."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives `input` arrow keys and a history
    says, questions = greeting(names)
    by_number = {str(number): question for number, question in enumerate(questions, 1)}
    numbered = [f"  {number}  {question}" for number, question in by_number.items()]
    log("\n".join([says, *numbered, f"1 or 2 asks that · {_WORDS}"]))
    return by_number


def _answers(args: Namespace) -> Answers:
    if args.server is not None:
        from tiny_llm_lab.serving.terminal.server_answers import ServerAnswers  # of the extra [serve]

        return ServerAnswers(args.server, None if args.model == "default" else args.model)
    loaded = model_options.load_from_args(args, has_pictures=True)
    tokenizer = loaded.checkpoint.tokenizer
    if not has_template(tokenizer):
        raise UserError(
            f"{model_options.model_name(args)} does not have a chat template: choose another --model"
        )
    settings = EngineSettings(SchedulerConfig(max_num_seqs=1), fits_length=True)
    return EngineAnswers(LLM.of(loaded, build_engine(load_serving(args.solution), loaded, settings)))


def _talk(answers: Answers, start: Turns, sampling: SamplingParams, start_with: Mapping[str, str]) -> None:
    """Read lines from stdin and print answers until the end of stdin or /exit.

    At the start of a conversation a line of `start_with` stands for a question.
    """
    messages, shown = [*start], list[Mapping[str, Any]]()
    while (line := _line()) is not None and line != "/exit":
        if line == "/clear":
            messages, shown = [*start], []
        elif line.startswith("/image "):
            shown += _picture(line.removeprefix("/image ").strip())
        elif line.startswith("/"):
            log(_WORDS)
        elif line:
            if len(messages) == len(start) and line in start_with:
                line = start_with[line]
                log(f"> {line}")
            content = [*shown, {"type": "text", "text": line}] if shown else line
            asked, shown = [*messages, {"role": "user", "content": content}], []
            text = _print_answer(answers, asked, sampling)
            # A refused question is not part of the conversation.
            messages = messages if text is None else [*asked, {"role": "assistant", "content": text}]


def _picture(name: str) -> list[Mapping[str, Any]]:
    """The part of a message that has the picture in a file; none if it can't be read, which a line says."""
    from tiny_llm_lab.runtime.pictures.decoding import opened  # of the extra [serve]

    try:
        data = file_bytes(name)
        url = f"data:{opened(data).get_format_mimetype()};base64,{b64encode(data).decode()}"
    except UserError as error:
        log(f"error: {name} {error}")
        return []
    log(f"{name} comes with your next question")
    return [{"type": "image_url", "image_url": {"url": url}}]


def _line() -> str | None:
    """The next line of stdin; None at its end. Ctrl-C leaves a line unsent."""
    while True:
        try:
            return cleaned(input("> " if sys.stdin.isatty() else ""), False, "stdin")
        except EOFError:
            return None
        except UnicodeDecodeError:
            raise UserError("stdin is not UTF-8 text: convert it first") from None
        except KeyboardInterrupt:
            log(f"\n{_WORDS}")


def _print_answer(answers: Answers, messages: Turns, sampling: SamplingParams) -> str | None:
    """Print an answer as it comes and return it, or the part before Ctrl-C; None if it was refused."""
    pieces, writer = list[str](), AnswerWriter(sys.stdout)
    try:
        with contextlib.closing(answers.stream(messages, sampling)) as stream:
            for piece in stream:
                if not pieces:
                    show("")
                pieces.append(piece)
                writer.write(piece)
    except KeyboardInterrupt:
        show("")
        log(" [interrupted]")
    except UserError as error:
        log(f"error: {error}. /clear starts a new conversation")
        return None
    writer.end()
    return "".join(pieces)
