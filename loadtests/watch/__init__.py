"""What a deployment says of itself while a client drives it."""
