"""The pages of ``docs/reference``, written from the code that they describe: ``python -m deployments.reference``."""
