"""The arrows between the packages: a solution knows lab.types and lab.native, the lab knows no solution."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
SOLUTIONS = ("tiny_llm", "tiny_llm_ref")


def files_of(*packages):
    return [path for package in packages for path in sorted((SOURCE / package).rglob("*.py"))]


def imported(path):
    """Absolute names of the modules that a file imports when it runs, wherever in the file."""
    package = path.relative_to(SOURCE).parent.parts
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = [node for node in tree.body if isinstance(node, ast.If) and is_for_types(node.test)]
    skipped = {id(node) for each in for_types for node in ast.walk(each)}
    for node in (each for each in ast.walk(tree) if id(each) not in skipped):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if module == "tiny_llm_lab")


def is_for_types(test):
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def named(path):
    """Every string of a file: a module may be imported by its name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("path", files_of(*SOLUTIONS), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_solution_knows_only_types_its_kernels_mlx_and_itself(path):
    own = path.relative_to(SOURCE).parts[0]
    # Also of the standard library only what computes: no answer needs processes or the network, and of files
    # only the text of a kernel that lies beside it.
    allowed = {own, "mlx", "math", "time", "typing", "collections", "dataclasses", "functools", "hashlib"}
    allowed |= {"array", "bisect", "contextlib", "itertools", "operator", "sys"}
    allowed |= {"pathlib"} if path.name == "metal.py" else set()
    for module in imported(path):
        is_given = module.startswith(("tiny_llm_lab.types", "tiny_llm_lab.runtime.native"))
        assert is_given or module.partition(".")[0] in allowed, f"{path.name} imports {module}"


def test_the_lab_never_imports_a_solution():
    for path in files_of("tiny_llm_lab"):
        for module in imported(path):
            assert module.partition(".")[0] not in SOLUTIONS, f"{path} imports {module}"


def test_only_the_switch_and_the_course_tools_name_a_solution():
    names = {path for path in files_of("tiny_llm_lab") for text in named(path) if text in SOLUTIONS}
    assert {path.relative_to(SOURCE / "tiny_llm_lab").as_posix() for path in names} <= {
        "types/packages.py",
        "course/manifest.py",
    }


def test_the_shared_types_import_nothing_of_the_course():
    files = sorted((SOURCE / "tiny_llm_lab" / "types").glob("*.py"))
    assert files
    for path, module in ((file, name) for file in files for name in imported(file)):
        is_own = module.startswith("tiny_llm_lab.types")
        assert is_own or not module.startswith("tiny_llm"), f"types/{path.name} imports {module}"
