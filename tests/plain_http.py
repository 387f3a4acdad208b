"""What tests ask of a deployment, over plain HTTP.

``httpx.get`` makes a TLS context with all certificate authorities for each call: some 30 ms of processor time, and a
test that waits for something makes dozens.
"""

import httpx

HTTP = httpx.Client(verify=False, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
"""A connection for each call, so that none leads to a gateway that has died since."""
