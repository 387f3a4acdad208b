"""The same under locust: its one user, its shape, its page."""
