"""Circuit breakers around policies of somebody's own: whatever such a policy does, no request is lost of it."""
