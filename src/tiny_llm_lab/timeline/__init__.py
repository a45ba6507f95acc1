"""`trace`: a run of the engine as a picture, step by step."""
