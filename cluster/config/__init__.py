"""What a YAML file says of policies, lanes and tenants, the same for a deployment and for a scenario."""
