"""Fixtures that these tests share with the course's."""

from tests.lab.course.conftest import tree

__all__ = ["tree"]
