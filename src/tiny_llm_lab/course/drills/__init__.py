"""Drills: a server of the reference with one hidden known mistake, which you name from what you can see."""
