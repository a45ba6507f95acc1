"""`bench-chunked-prefill`: latencies of short requests while long prompts are computed."""
