"""What this gateway believes to be in the replicas' prefix caches."""
