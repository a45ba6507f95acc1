"""Fixtures that these tests share with the lab's."""

from tests.lab.conftest import kernels_on, toy

__all__ = ["kernels_on", "toy"]
