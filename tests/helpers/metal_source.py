"""Metal's declarations in words that C++ has: pointers and arrays of an address space become checked ones."""

import re

_TYPE = r"(?P<type>\w+)"
_DEVICE_POINTER = re.compile(
    rf"(?P<cast>\breinterpret_cast\s*<\s*)?\b(?P<before>const\s+)?device\s+(?P<after>const\s+)?{_TYPE}\s*\*"
)
_SHARED_POINTER = re.compile(
    rf"\b(?:const\s+)?threadgroup\s+(?:const\s+)?{_TYPE}\s*\*(?=\s*(?:const\s+)?\w+\s*[=,;)])"
)
_AXES = r"(?:\s*\[[^\];]*\])*"
_SHARED = re.compile(rf"\bthreadgroup\s+{_TYPE}\s+(?P<names>\w+{_AXES}(?:\s*,\s*\w+{_AXES})*)\s*;")


def as_cpp(source: str) -> str:
    """The same source, line by line, with `metal_memory.h`'s types for `device` and `threadgroup` memory."""
    source = _DEVICE_POINTER.sub(_device_pointer, source)
    source = _SHARED_POINTER.sub(r"emulated::SharedPointer<\g<type>>", source)
    return _SHARED.sub(_shared, source)


def _device_pointer(found: re.Match[str]) -> str:
    const = "const " if found["before"] or found["after"] else ""
    cast = "static_cast<" if found["cast"] else ""
    return f"{cast}emulated::DeviceArray<{const}{found['type']}>"


def _shared(found: re.Match[str]) -> str:
    made = []
    for each in re.findall(rf"\w+{_AXES}", found["names"]):
        name, *axes = (part.strip(" ]\n") for part in each.split("["))
        if axes:
            type_ = ", ".join([found["type"], *(f"uint({size})" for size in axes)])
            made.append(f'static emulated::Shared<{type_}> {name}{{"{name}"}};')
        else:
            made.append(f'static emulated::Shared<{found["type"]}> {name}_memory{{"{name}"}};')
            made.append(f"const emulated::Element<{found['type']}> {name} = {name}_memory.only();")
    return " ".join(made)
