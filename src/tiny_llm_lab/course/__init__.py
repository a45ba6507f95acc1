"""Room 5 of 6, `course`: all that turns the reference into exercises and grades them.

It imports `serving`, `runtime` and `types`, and nothing that measures.

- here: the manifest, the parsed reference, what later tasks add to a function
- `starter/`: cuts the reference into the starter, fills days up, resets tasks
- `grading/`: the pytest plugin; `record/`: what has passed, and what is next
- `learner/`: status, next, hint, watch, diff, explain; `compare/`: where a solution first differs
- `drills/`: a server with a hidden mistake

What checks the course and builds the book is in `tools/`, next to `src/`.
"""
