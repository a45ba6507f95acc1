"""Where the kernels of this week run: as in week 2."""

from tests.week_2.conftest import kernels, metal, probe

__all__ = ["kernels", "metal", "probe"]
