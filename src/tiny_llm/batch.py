"""`batch_generate` under the name that skyzh/tiny-llm gives it."""

from .generate.batch_generator import batch_generate

__all__ = ["batch_generate"]
