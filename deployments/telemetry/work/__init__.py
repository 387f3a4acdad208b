"""How much work requests are: in service-seconds of the engine profile, and how unlike one another."""
