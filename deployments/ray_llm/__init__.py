"""Configurations of Ray Serve LLM, as this project serves them.

Rooms:
    taken_fields: A foreign configuration, read field by field.
    pools: A pool from what an ``LLMConfig`` says of engines, their place and their number.
    translation: The ``args`` of an application from what Ray's builders take.
"""
