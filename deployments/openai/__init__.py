"""The OpenAI API: requests, responses, errors, whose they are, and text to tokens."""
