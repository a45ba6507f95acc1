"""Checks of the course itself: does it hang together, and do its tests catch wrong code?"""
