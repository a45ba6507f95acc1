"""All that one machine can tell the project, in one run: the parts, and the page made of them."""
