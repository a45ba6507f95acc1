"""A model whose passes are written down, take time on a clock, and may give other logits."""


class Passes:
    """The rows of each pass and where its first row begins; a pass takes `seconds_of(number of rows)`."""

    def __init__(self, model, clock=None, seconds_of=None, change=lambda logits: logits):
        self.model, self.clock, self.seconds_of, self.change = model, clock, seconds_of, change
        self.rows, self.starts = [], []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, tokens, offset, *args, **kwargs):
        self.rows.append(len(tokens))
        self.starts.append(offset[0])
        if self.clock:
            self.clock.now += self.seconds_of(len(tokens))
        return self.change(self.model(tokens, offset, *args, **kwargs))
