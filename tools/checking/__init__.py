"""Checks of the course itself: is it consistent, and do its tests catch wrong code?"""
