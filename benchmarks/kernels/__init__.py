"""`bench-kernels`: the versions of each operator, from the definition to the reference, under the limit."""
