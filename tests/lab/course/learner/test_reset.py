"""`reset`: one task's functions are stubs again, and nothing else changes."""

import re

import pytest
from tests.helpers.trees import course_files

from tiny_llm_lab.cli.dispatch import main

FILES = course_files("desk")
ANSWER, KERNEL = FILES["src/tiny_llm_ref/sums.py"], FILES["src/tiny_llm_ref/kernels/sum.cpp"]
STUB = '        raise NotImplementedError("task 1.2.1")\n'


@pytest.fixture
def written(untouched):
    """The clone with all tasks written, and a function of the learner's own."""
    package = untouched / "src/tiny_llm"
    (package / "sums.py").write_text(ANSWER + "\n\ndef mine() -> int:  # own\n    return 1\n")
    (package / "kernels/sum.cpp").write_text(KERNEL)
    return package


def test_only_the_functions_of_the_task_change(written, capsys):
    before = (written / "sums.py").read_text()
    assert main(["reset", "1.2.1"]) == 0
    body = "        self.parts.extend(items)\n        return self._sum()\n"
    helper = "    def _sum(self) -> int:\n        return sum(self.parts)\n\n"
    assert (written / "sums.py").read_text() == before.replace(body, STUB).replace(helper, "")
    assert (written / "kernels/sum.cpp").read_text() == KERNEL.replace(
        "  return n;", '  throw std::runtime_error("task 1.2.1");'
    )
    assert (written / "sums.py.backup1").read_text() == before
    assert (written / "kernels/sum.cpp.backup1").read_text() == KERNEL
    assert "sums.py: Total.add to do again; your version is in sums.py.backup1\n" in capsys.readouterr().out


def test_a_changed_signature_is_the_starters_again(written, capsys):
    path = written / "sums.py"
    path.write_text(path.read_text().replace('twice(x: int) -> int:\n    """Twice x."""\n', "twice():\n"))
    main(["reset", "1.1.1"])
    said = " ".join(capsys.readouterr().out.split())
    assert "extend again, or `./pdmw run stubs --fill-before` a later day" in said
    assert said.endswith(": twice (2.1.1, 2.1.2), Total.__init__ (2.1.1)"), "it extends the class"
    head = 'def twice(x: int) -> int:\n    """Twice x."""\n    raise NotImplementedError("task 1.1.1")\n'
    assert head in path.read_text()


def test_stubs_are_left_alone(untouched, capsys):
    assert main(["reset", "1.1.1"]) == 0
    assert capsys.readouterr().out == "task 1.1.1 has only stubs, so there is nothing to reset\n"
    assert main(["reset", "1.1.1", "--undo"]) == 0
    assert capsys.readouterr().out == "task 1.1.1 has no other answer in a backup\n"
    assert not list(untouched.rglob("*.backup*"))


@pytest.mark.parametrize(
    ("task", "text", "says"),
    [
        ("1.1.7", ANSWER, "there is no task '1.1.7': did you mean 1.1.1?"),
        ("2.1.2", ANSWER, "task 2.1.2 only extends twice: reset the task that owns it"),
        ("1.1.1", "def broken(:\n", "sums.py:1 is not valid Python (invalid syntax): fix that line"),
    ],
)
def test_bad_input_is_one_line(written, capsys, task, text, says):
    (written / "sums.py").write_text(text)
    assert main(["reset", task]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert (written / "sums.py").read_text() == text


def test_what_was_taken_out_comes_back(written):
    (written / "sums.py").write_text("x = 1\n")
    assert main(["reset", "1.1"]) == 0
    text = (written / "sums.py").read_text()
    assert text.startswith("x = 1\n") and [*re.findall(r"task ([\d.]+)", text)] == ["1.1.1", "1.1.1", "1.2.1"]


def test_a_class_that_is_all_to_write_is_the_starters(written, untouched):
    """With what its author has put into it gone, which its methods needed."""
    path = written / "sums.py"
    main(["reset", "1.2"])
    made = "import dataclasses\n\n\n@dataclasses.dataclass\nclass Total:\n    parts: list\n"
    path.write_text(path.read_text().replace("class Total:\n", made, 1))
    assert main(["reset", "1.1"]) == 0
    assert "dataclass" not in path.read_text() and '    """A total."""\n' in path.read_text()


def test_a_kernel_without_its_marks_is_one_line(written, capsys):
    (written / "kernels/sum.cpp").write_text("int sum(int n) { return n; }\n")
    assert main(["reset", "1.2.1"]) == 2
    assert "kernels/sum.cpp has lost its line `BEGIN task 1.2.1`: put it back" in capsys.readouterr().err
    assert not list(written.rglob("*.backup*")), "neither file was changed"


def test_methods_of_a_task_in_another_file(untouched):
    manifest, package = untouched / "course.toml", untouched / "src/tiny_llm"
    answer = "class More:\n    def a(self):\n        return 1\n\n    def b(self):\n        return 2\n"
    text = manifest.read_text().replace(
        'title = "twice more"', 'title = "twice more"\nalso = ["more.py:More.b"]'
    )
    more = '[[task]]\nid = "1.2.2"\ntitle = "more"\nfile = "more.py"\nsymbols = ["More"]\n'
    manifest.write_text(text + more)
    (untouched / "src/tiny_llm_ref/more.py").write_text(answer)
    assert main(["stubs"]) == 0
    stubs = re.findall(r"task ([\d.]+)", (package / "more.py").read_text())
    assert stubs == ["1.2.2", "2.1.2"]
    (package / "more.py").write_text(answer)
    assert main(["reset", "2.1.2"]) == 0
    stub = 'raise NotImplementedError("task 2.1.2")'
    assert (package / "more.py").read_text() == answer.replace("return 2", stub)


def test_undo_brings_the_answer_back_and_keeps_what_was_written_since(written, capsys):
    path, kernel = written / "sums.py", written / "kernels/sum.cpp"
    before = path.read_text()
    main(["reset", "1.2.1"])
    for file in (path, kernel):
        file.write_text(file.read_text() + "\nWRITTEN = 1\n")
    main(["reset", "1.1.1"])
    capsys.readouterr()
    assert main(["reset", "1.2.1", "--undo"]) == 0
    assert "sums.py: Total.add restored; what was there is in sums.py.backup3\n" in capsys.readouterr().out
    assert main(["reset", "1.1.1", "--undo"]) == 0
    for file, text in ((path, before), (kernel, KERNEL)):
        lines = sorted(filter(None, file.read_text().splitlines()))  # imports are in another order
        assert lines == sorted(filter(None, f"{text}WRITTEN = 1".splitlines()))
    capsys.readouterr()
    assert main(["reset", "1.2.1", "--undo"]) == 0
    assert capsys.readouterr().out == "task 1.2.1 has no other answer in a backup\n"
