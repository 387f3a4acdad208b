"""This gateway's view of the replicas, and which of them get nothing for a while."""
