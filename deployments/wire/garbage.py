"""Python's garbage collector in processes that tokens go through."""

import gc


def keep_what_is_there() -> None:
    """What a process has once it is ready stays as long as the process, so it is never gone through again.

    A full collection stops everything, for a tenth of a second with a tokenizer, pydantic's models and Ray in memory.
    What is collected later is what requests have left.
    """
    gc.collect()
    gc.freeze()
