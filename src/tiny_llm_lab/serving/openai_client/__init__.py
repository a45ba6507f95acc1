"""A client's side of OpenAI's API: the stream's events, its errors, and which model is served."""
