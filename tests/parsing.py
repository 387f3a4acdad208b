"""``ast.parse``, which CPython before 3.11.8 counts wrongly when a second one runs meanwhile.

The depth of recursion is one count for the whole interpreter there. A collection of garbage in the middle of a parse
lets another thread run; where that one parses too (``inspect.signature`` does, and so does every traceback), the first
ends with ``SystemError: AST constructor recursion depth mismatch`` (CPython's issue 106905). Hypothesis parses
thousands of times beside the threads of a gateway.
"""

import ast
import gc
import sys
import threading
from functools import wraps
from typing import Any

COUNTS_EACH_PARSE = (3, 11, 8)
"""The first CPython that counts the depth of every parse for itself."""


def one_parse_at_a_time() -> None:
    """Has each parse run to its end, without a collection in it, where the interpreter needs that."""
    if sys.version_info >= COUNTS_EACH_PARSE:
        return
    parse, turn = ast.parse, threading.RLock()

    @wraps(parse)
    def alone(*arguments: Any, **keywords: Any) -> Any:
        with turn:
            collects = gc.isenabled()
            gc.disable()
            try:
                return parse(*arguments, **keywords)
            finally:
                if collects:
                    gc.enable()

    ast.parse = alone
