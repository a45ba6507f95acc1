"""A solution's scheduler under a virtual clock: a day of traffic in seconds, without a model."""
