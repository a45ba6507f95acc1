"""The reference as exercises: which task owns each of its public functions, and what later tasks add to them.

course.toml lists the parameters, `adds` and `widens` of a task. Their meaning is in the docstring of the
reference, behind the words "From task W.D.N on": the rest of that paragraph belongs to the task. Until they
come, a learner's function lacks them, and a call with one is told from a wrong call.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.source import LINE_LENGTH, Function, FunctionNode, Source, is_of, last_line
from tiny_llm_lab.runtime.console.todo import Todo, causes_of, shown
from tiny_llm_lab.runtime.task_names import modules
from tiny_llm_lab.types import UserError

# By the name of a parameter, the type that it gets; with None it goes.
Changes = Mapping[str, str | None]


@dataclass(frozen=True)
class Parameter:
    """A parameter as it is written; "" stands for no type and no default."""

    name: str
    kind: str = ""
    default: str = ""
    star: str = ""
    is_keyword: bool = False

    @property
    def written(self) -> str:
        kind = f": {self.kind}" if self.kind else ""
        equals = " = " if self.kind else "="
        return f"{self.star}{self.name}{kind}{equals + self.default if self.default else ''}"


def last_head_line(node: FunctionNode) -> int:
    """The number of the line on which the body may begin below."""
    return last_line(node.body[0]) if node.returns is None else node.returns.end_lineno or node.lineno


def head_lines(source: str, node: FunctionNode, changes: Changes) -> list[str]:
    """`def name(...) -> ...:` with changed parameters."""
    return _laid_out(source, node, [each.written for each in parameters(source, node, changes)])


def head_with(source: str, node: FunctionNode, added: Sequence[Parameter]) -> list[str]:
    """The same with more parameters, behind those that a call may pass by position."""
    own = list(parameters(source, node))
    end = next((i for i, each in enumerate(own) if each.is_keyword), len(own))
    return _laid_out(source, node, [each.written for each in (*own[:end], *added, *own[end:])])


def _laid_out(source: str, node: FunctionNode, shown: Sequence[str]) -> list[str]:
    pad = " " * node.col_offset
    start = f"{pad}{'async ' * isinstance(node, ast.AsyncFunctionDef)}def {node.name}("
    end = f"){returned(source, node)}:"
    line = f"{start}{', '.join(shown)}{end}"
    if len(line) <= LINE_LENGTH:
        return [line]
    inner = f"{pad}    {', '.join(shown)}"
    if len(inner) <= LINE_LENGTH:
        return [start, inner, f"{pad}{end}"]
    return [start, *(f"{pad}    {each}," for each in shown), f"{pad}{end}"]


def parameters(source: str, node: FunctionNode, changes: Changes | None = None) -> Iterator[Parameter]:
    """The parameters after `changes`; a star that only parts them is called "*"."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    without = [None] * (len(positional) - len(args.defaults))
    pairs = zip(positional, [*without, *args.defaults], strict=True)
    results = [_parameter(source, *pair) for pair in pairs]
    pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    named = list(_changed([_parameter(source, *pair, is_keyword=True) for pair in pairs], changes or {}))
    if args.vararg:
        results.append(_parameter(source, args.vararg, star="*", is_keyword=True))
    yield from _changed(results, changes or {})
    if named and not args.vararg:
        yield Parameter("*", is_keyword=True)
    yield from named
    if args.kwarg:
        yield from _changed([_parameter(source, args.kwarg, star="**", is_keyword=True)], changes or {})


def _parameter(
    source: str, arg: ast.arg, default: ast.expr | None = None, star: str = "", is_keyword: bool = False
) -> Parameter:
    return Parameter(arg.arg, _text(source, arg.annotation), _text(source, default), star, is_keyword)


def _changed(found: Sequence[Parameter], changes: Changes) -> Iterator[Parameter]:
    for each in found:
        if (kind := changes.get(each.name, each.kind)) is not None:
            yield replace(each, kind=kind)


def one_line(source: str, function: Function) -> str:
    """The head of a function, with the class before the name of a method."""
    written = ", ".join(each.written for each in parameters(source, function.node))
    return f"def {function.name}({written}){returned(source, function.node)}"


def returned(source: str, node: FunctionNode) -> str:
    """The type of the result with its arrow; "" without one."""
    return f" -> {_text(source, node.returns)}" if node.returns else ""


def _text(source: str, node: ast.expr | None) -> str:
    """The code of an expression; the standard library's function splits the whole source each time."""
    if node is None or node.end_lineno is None:
        return ""
    lines = [line.encode() for line in _lines(source)[node.lineno - 1 : node.end_lineno]]
    lines[-1] = lines[-1][: node.end_col_offset]
    return b"\n".join([lines[0][node.col_offset :], *lines[1:]]).decode()


@lru_cache(maxsize=256)
def _lines(source: str) -> list[str]:
    return source.splitlines()


_ADDS = re.compile(r"(?P<symbol>[\w.]+)\((?P<parameters>\w+(?:, \w+)*)\)")
_WIDENS = re.compile(r"(?P<symbol>[\w.]+)\((?P<parameter>\w+): (?P<before>.+)\)")
_FROM = re.compile(r"From task (?P<task>\d+\.\d+\.\d+) on: ")

IsThere = Callable[[str], bool]  # whether what the task of this id adds is there


@dataclass(frozen=True)
class Growth:
    """A parameter that a task adds to a function of an earlier task, or one of which it takes more types."""

    task: str
    symbol: str
    parameter: str
    before: str | None = None  # the type that it had; None: the parameter is new


def growths(course: Course) -> list[Growth]:
    """All of them, in the order of the tasks. Raises UserError where course.toml has another form."""
    return [growth for task in course.tasks for growth in growths_of(task)]


def growths_of(task: Task) -> Iterator[Growth]:
    """What one task lists."""
    for listed in task.adds:
        match = _match(_ADDS, task, "adds", listed, "run(size)")
        yield from (Growth(task.id, match["symbol"], each) for each in match["parameters"].split(", "))
    for listed in task.widens:
        match = _match(_WIDENS, task, "widens", listed, "run(size: int)")
        yield Growth(task.id, match["symbol"], match["parameter"], match["before"])


def as_of(source: str, grown: Sequence[Growth], is_there: IsThere) -> str:
    """A file of the reference before the tasks that `is_there` denies: without their parameters and text."""
    lines = source.splitlines()
    for first, last, new in sorted(_edits(source, grown, is_there), reverse=True):
        lines[first - 1 : last] = new
    return "\n".join(lines) + "\n"


def in_starter(source: str, grown: Sequence[Growth]) -> str:
    """A file of the reference before all that later tasks add to its functions."""
    return as_of(source, grown, lambda task: False)


def changes(symbol: str, grown: Sequence[Growth], is_there: IsThere) -> Changes:
    """Those of a function that is not yet as in the reference."""
    # The last task first: what it widens may have been added by another.
    later = reversed([each for each in grown if each.symbol == symbol and not is_there(each.task)])
    return {growth.parameter: growth.before for growth in later}


def additions(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """The ids of the tasks that a docstring names as adding something, each with its lines."""
    lines = docstring.splitlines()
    for first, end, task in _paragraphs(lines):
        yield task, lines[first:end]


def _edits(source: str, grown: Sequence[Growth], is_there: IsThere) -> Iterator[tuple[int, int, list[str]]]:
    """Lines first to last, counted from 1, and their replacement."""
    parsed = Source(source)
    for name, function in parsed.functions.items():
        if changed := changes(name, grown, is_there):
            node = function.node
            yield node.lineno, last_head_line(node), head_lines(source, node, changed)
    lines = source.splitlines()
    for owner in ast.walk(parsed.tree):
        if isinstance(owner, FunctionNode | ast.ClassDef) and ast.get_docstring(owner):
            first, last = owner.body[0].lineno, last_line(owner.body[0])
            old = lines[first - 1 : last]
            if (new := _shortened(old, is_there)) != old:
                yield first, last, new


def _shortened(docstring: list[str], is_there: IsThere) -> list[str]:
    """The lines of a docstring, quotes included, without what the tasks add that are not there."""
    pad = docstring[0][: len(docstring[0]) - len(docstring[0].lstrip())]
    text = [*docstring[:-1], docstring[-1].rstrip().removesuffix('"""')]
    kept = list(text)
    for first, end, task in reversed(list(_paragraphs(text))):
        if not is_there(task):
            del kept[first:end]
            # If we remove a whole paragraph, we also remove its blank line.
            if not kept[first - 1].strip() and (first == len(kept) or not kept[first].strip()):
                del kept[first - 1]
    if kept == text:
        return docstring
    while not kept[-1].strip():
        kept.pop()
    closes_here = len(kept) == 1 and len(kept[0]) + 3 <= LINE_LENGTH
    return [kept[0] + '"""'] if closes_here else [*kept, f'{pad}"""']


def _paragraphs(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Where each "From task" begins and ends among the lines of a docstring, and its task."""
    for first, line in enumerate(lines):
        if match := _FROM.match(line.strip().removeprefix('"""')):
            behind = range(first + 1, len(lines))
            ends = (i for i in behind if not lines[i].strip() or _FROM.match(lines[i].strip()))
            yield first, next(ends, len(lines)), match["task"]


def _match(pattern: re.Pattern[str], task: Task, key: str, listed: str, form: str) -> re.Match[str]:
    match = pattern.fullmatch(listed)
    if match is None:
        raise UserError(f'course.toml: task {task.id}: {key} {listed!r} does not have the form "{form}"')
    return match


_NAMED = re.compile(r"(?P<symbol>[\w.]+)\(\) got an unexpected keyword argument '(?P<parameter>\w+)'")
_BY_PLACE = re.compile(r"(?P<symbol>[\w.]+)\(\) takes (?:from \d+ to )?\d+ positional arguments? but \d+ ")


def find_missing(error: BaseException, grown: Sequence[Growth], package: Path, root: Path) -> Todo | None:
    """The task whose parameter a call found missing in `package`, if that is behind an exception.

    None for a parameter that no task adds, and for one that the function has.
    """
    for each in causes_of(error):
        match = _message_match(str(each)) if isinstance(each, TypeError) else None
        if match is None:
            continue
        named = match.groupdict().get("parameter")
        for growth in grown:
            is_meant = growth.symbol == match["symbol"] and named in (None, growth.parameter)
            if growth.before is None and is_meant:
                for path, function in _functions(package, growth.symbol):
                    # By place the first parameter that is missing is the one that the call has too many.
                    if growth.parameter not in function.parameter_names:
                        return _todo(growth, function, shown(path, root))
    return None


def _todo(growth: Growth, function: Function, file: str) -> Todo:
    if (stub := function.stub_of) is not None:  # the function comes before what is added to it
        return Todo(stub, f"{file}:{function.first_body_line} {growth.symbol}")
    where = f"{file}:{function.node.lineno} {growth.symbol}"
    return Todo(growth.task, f"the parameter `{growth.parameter}` of {where}", is_parameter=True)


def _message_match(message: str) -> re.Match[str] | None:
    return _NAMED.match(message) or _BY_PLACE.match(message)


def _functions(package: Path, symbol: str) -> Iterator[tuple[Path, Function]]:
    for path in modules(package).values():
        try:
            function = Source(path.read_text(encoding="utf-8")).functions.get(symbol)
        except SyntaxError:
            continue
        if function is not None:
            yield path, function


def reference_sources(course: Course) -> dict[str, Source]:
    """Each file of the reference, by its path in the package, with the tasks of its public functions.

    A class in `symbols` means its public methods, except those that another task names. Raises
    UserError where course.toml does not fit.
    """
    results: dict[str, Source] = {}
    for name, path in modules(course.reference).items():
        source = Source(path.read_text(encoding="utf-8"))
        tasks = [task for task in course.tasks if name in task.files]
        public = [each for each, function in source.functions.items() if function.is_public]
        results[name] = Source(source.text, _owned(name, tasks, public))
    missing = [(task, name) for task in course.tasks for name in task.files if name not in results]
    for task, name in missing:
        raise UserError(f"course.toml: task {task.id}: {name} is not in {course.reference}")
    for name in sorted(course.given):
        if name not in results or results[name].task_of:
            raise UserError(f"course.toml: given {name} is no file of {course.reference} without tasks")
    return results


def exercises(course: Course) -> dict[str, Source]:
    """`reference_sources`; raises UserError as well for a function of no task in a file that is not given."""
    sources = reference_sources(course)
    for path, source in sources.items():
        for name, function in source.functions.items():
            if function.is_public and name not in source.task_of and path not in course.given:
                raise UserError(
                    f"{Path(path).name}: {name} does not belong to a task of course.toml: move it to "
                    "tiny_llm_lab, give it to a task, or start its name with an underscore"
                )
    return sources


def called_by(tasks: Iterable[Task], source: Source) -> set[str]:
    """The functions of a file that the answers of `tasks` call although later tasks own them.

    A class in `calls` means those of its methods that its own task owns.
    """
    called = {symbol for task in tasks for symbol in task.calls}
    return {
        name
        for name, owner in source.task_of.items()
        if name in called or is_of(name, called.intersection(owner.symbols))
    }


def extensions(tasks: Iterable[Task], functions: Iterable[str]) -> str:
    """Those of `functions` that tasks extend, with their ids: "twice (2.1.1, 2.1.2), Total (2.1.1)"."""
    listed = list(tasks)
    ids = {name: [task.id for task in listed if is_of(name, task.grows)] for name in functions}
    return ", ".join(f"{name} ({', '.join(each)})" for name, each in ids.items() if each)


def functions_of(course: Course, task: Task, file: str, functions: Iterable[Function]) -> list[Function]:
    """Those among the functions of a file that a task owns, or extends where it owns none there."""
    wanted = task.symbols_in(file) or task.grows
    others = {each for other in course.tasks for each in other.symbols_in(file)} - set(wanted)
    return [
        each for each in functions if each.is_public and each.name not in others and is_of(each.name, wanted)
    ]


def _owned(file: str, tasks: list[Task], public: list[str]) -> dict[str, Task]:
    claims = [(task, symbol) for task in tasks for symbol in task.symbols_in(file)]
    named = [symbol for _, symbol in claims]
    for _, symbol in claims:
        if named.count(symbol) > 1:
            raise UserError(f"course.toml: {symbol} of {file} is owned by more than one task")
    owned: dict[str, Task] = {}
    # Exact names first: what remains of a class falls to the task that names the whole class.
    for task, symbol in sorted(claims, key=lambda claim: claim[1] not in public):
        members = [name for name in public if name == symbol or name.startswith(f"{symbol}.")]
        if not members:
            raise UserError(f"course.toml: task {task.id}: {file} has no public {symbol!r}")
        for name in members:
            owned.setdefault(name, task)
    return owned
