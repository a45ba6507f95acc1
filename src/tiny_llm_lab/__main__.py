"""Holds the place of the command line."""

import sys

if sys.argv[1:] == ["--help"]:
    print("main batch-main test test-ref check stubs bench-chunked-prefill book eval-recall")
else:
    print(sys.argv[1:])
