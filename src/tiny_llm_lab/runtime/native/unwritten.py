"""Whether a solution's own models on kernels are still tasks to be written."""

import inspect
import sys

_STUB = 'raise NotImplementedError("task '


def is_unwritten(package: str, file: str) -> bool:
    """Whether a module that `package` has imported, such as models.model, has the body of a stub.

    `build_model` is given in its final form as soon as a day after it is begun, and imports what later days
    write. Until then a model computes without it.
    """
    module = sys.modules.get(f"{package.partition('.')[0]}.{file}")
    return module is not None and _STUB in inspect.getsource(module)
