"""A study of deployments: one file with a question, variants of a deployment, loads, and what has to hold."""
