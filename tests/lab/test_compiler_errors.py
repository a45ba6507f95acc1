"""What is shown of a compiler's words: the first errors, each place once, with their lines of source."""

from pathlib import Path

import pytest

from tiny_llm_lab.runtime.native.compiling.build import errors_in

OWN = Path("/clone/src/tiny_llm/kernels")
GCC = """\
In file included from /clone/src/tiny_llm/kernels/linear.cpp:9:
/clone/src/tiny_llm/kernels/panel.h: In function 'void fill_panel(const Rows&)':
/clone/src/tiny_llm/kernels/panel.h:19:36: error: 'k' was not declared in this scope
   19 |       Vec weight = spans[n].vector(k);
      |                                    ^
/clone/src/tiny_llm/kernels/panel.h: In instantiation of 'void fill_panel(const Rows&) [with M = 8]':
/clone/src/tiny_llm/kernels/panel.h:47:25:   required from 'void multiply_rows(const Rows&) [with M = 8]'
/clone/src/tiny_llm/kernels/linear.cpp:132:14:   required from here
/clone/src/tiny_llm/kernels/panel.h:21:12: error: 'int' assigned to 'Vec [1]'
   21 |   total[0] = 5
      |   ~~~~~~~~~^~~
/clone/src/tiny_llm/kernels/panel.h: In instantiation of 'void fill_panel(const Rows&) [with M = 4]':
/clone/src/tiny_llm/kernels/panel.h:21:12: error: 'int' assigned to 'Vec [2]'
   21 |   total[0] = 5
      |   ~~~~~~~~~^~~
"""
CLANG = """\
In file included from /clone/src/tiny_llm/kernels/linear.cpp:9:
/clone/src/tiny_llm_lab/cpp/simd.h:55:12: error: no matching function for call to 'load'
  return load(p);
         ^~~~
/clone/src/tiny_llm/kernels/panel.h:19:20: note: in instantiation of function template specialization
      Vec weight = widened(x);
                   ^
2 errors generated.
"""


def test_errors_without_the_types_they_were_compiled_for():
    assert errors_in(GCC, OWN).splitlines() == [
        "/clone/src/tiny_llm/kernels/panel.h:19:36: error: 'k' was not declared in this scope",
        "   19 |       Vec weight = spans[n].vector(k);",
        "      |                                    ^",
        "/clone/src/tiny_llm/kernels/panel.h:21:12: error: 'int' assigned to 'Vec [1]'",
        "   21 |   total[0] = 5",
        "      |   ~~~~~~~~~^~~",
    ]


@pytest.mark.parametrize(("most", "last"), [(1, "and 1 more error"), (2, "      |   ~~~~~~~~~^~~")])
def test_no_more_errors_than_one_reads(most, last):
    assert errors_in(GCC, OWN, most).splitlines()[-1] == last


def test_an_error_in_what_is_given_names_the_line_that_led_to_it():
    given = "/clone/src/tiny_llm_lab/cpp/simd.h:55:12: error: no match for 'load'\n   55 | load(p)\n"
    used = "/clone/src/tiny_llm/kernels/panel.h:19:20:   required from here\n"
    deeper = "/clone/src/tiny_llm/kernels/linear.cpp:82:45:   required from here\n"
    [error, source, led] = errors_in(f"{used}{deeper}{given}", OWN).splitlines()
    assert (error, source) == tuple(given.splitlines())
    assert led == "  used at /clone/src/tiny_llm/kernels/panel.h:19", "the nearest line of the learner's"


def test_an_own_error_needs_no_such_line():
    assert "used at" not in errors_in(GCC, OWN)


def test_clang_says_it_after_the_error():
    shown = errors_in(CLANG, OWN).splitlines()
    assert shown[0].endswith("simd.h:55:12: error: no matching function for call to 'load'")
    assert shown[-1] == "  used at /clone/src/tiny_llm/kernels/panel.h:19"


@pytest.mark.parametrize("said", ["cc1plus: out of memory", "ld: cannot find -lstdc++\n"])
def test_other_words_are_shown_as_they_are(said):
    assert errors_in(said, OWN) == said.strip()
