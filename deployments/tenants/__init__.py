"""Who may use a deployment: tenants with API keys or an identity provider's tokens, and what each is entitled to."""
