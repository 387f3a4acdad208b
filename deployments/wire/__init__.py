"""Between a gateway and its replicas: messages, routers, and Serve's internals."""
