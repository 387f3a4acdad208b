"""The hot routes: requests from the HTTP parser straight to the gateway's service, and events to the socket."""
