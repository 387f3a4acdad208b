"""Clients' connections to a gateway: TLS, limits, bodies, and the hot routes past FastAPI, from parser to socket."""
