"""What a deployment answers beside what vLLM's own server answers: each shape of the API, whole and streamed."""
