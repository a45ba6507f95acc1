"""Batches: a file of requests becomes a file of answers, by the server's own routes and without HTTP."""
