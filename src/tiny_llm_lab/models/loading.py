"""Placeholder until the loader lands."""


def load_checkpoint(name: str = "default") -> None:
    raise NotImplementedError
