"""A model that fails when it is told to."""


class BrokenError(Exception):
    """The device is gone."""


class Fragile:
    """A model that raises `error` as soon as it is set; what is stored by then stays stored."""

    def __init__(self, model):
        self.model, self.config, self.ops, self.error = model, model.config, model.ops, None
        self.create_kv_cache = model.create_kv_cache
        self.create_paged_kv_cache = model.create_paged_kv_cache

    def __call__(self, *args, **kwargs):
        out = self.model(*args, **kwargs)
        if self.error is not None:
            raise self.error
        return out
