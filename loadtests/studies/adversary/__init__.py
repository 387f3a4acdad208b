"""What strangers, clients and tenants try against a deployment, and what comes of it."""
