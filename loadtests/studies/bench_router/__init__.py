"""What a request costs on its way to an engine: spillway's gateway and other routers, side by side."""
