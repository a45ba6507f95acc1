"""The scheduler of a solution under a virtual clock: a day of traffic in seconds, and no model at all."""
