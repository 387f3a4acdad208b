"""Studies on live deployments, one command each."""
