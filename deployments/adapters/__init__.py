"""LoRA adapters of a model: which there are, and how all of its replicas and gateways come to know of another."""
