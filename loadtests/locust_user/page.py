"""What locust's page has of ours: a tab for lanes and classes, and a word on what is wrong with the form."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from flask import Response, jsonify, request

from loadtests.drivers.client_log import ClientLog
from loadtests.drivers.lane_stats import TITLES, lane_stats
from policies.errors import ConfigError

TAB = "lanes-and-classes"
MOST_TIME_FRACTION = 0.005
"""Lines are made in the process that sends, out of every request; it is half of what a p99 of the send lag notices."""


class Seldom:
    """Lines that are made anew so seldom that making them takes a small and constant part of the time.

    Args:
        make: Makes them.
        now_s: A clock.
    """

    def __init__(
        self, make: Callable[[], list[dict[str, Any]]], now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._make = make
        self._now_s = now_s
        self._lines: list[dict[str, Any]] = []
        self._again_at_s = -math.inf

    def __call__(self) -> list[dict[str, Any]]:
        """The lines, as they are now or were a while ago."""
        begun_s = self._now_s()
        if begun_s >= self._again_at_s:
            self._lines = self._make()
            ended_s = self._now_s()
            self._again_at_s = ended_s + (ended_s - begun_s) / MOST_TIME_FRACTION
        return self._lines


def add_tab(web_ui: Any, lines: Callable[[], list[dict[str, Any]]]) -> None:
    """Adds the tab, and what is in it to the statistics that the page asks for every few seconds.

    Args:
        web_ui: Locust's.
        lines: The table's lines.
    """
    columns = [{"key": name, "title": title} for name, title in TITLES.items()]
    web_ui.template_args["extended_tabs"] = [{"title": "Lanes and classes", "key": TAB}]
    web_ui.template_args["extended_tables"] = [{"key": TAB, "structure": columns}]

    @web_ui.app.after_request
    def extend(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json:
            body = {**response.get_json(), "extended_stats": [{"key": TAB, "data": lines()}]}
            response.set_data(web_ui.app.json.dumps(body))
        return response


def refuse_wrong_forms(web_ui: Any, check: Callable[[Mapping[str, str]], None]) -> None:
    """A form that can't be run is answered in the page, and starts nothing.

    Args:
        web_ui: Locust's.
        check: Given the form's values; raises ``ConfigError`` for wrong ones.
    """

    @web_ui.app.before_request
    def refuse() -> Response | None:
        if request.method != "POST" or not request.path.endswith("/swarm"):
            return None
        try:
            check(request.form)
        except ConfigError as error:
            return jsonify({"success": False, "message": str(error)})
        return None


def table_lines(log: ClientLog) -> list[dict[str, Any]]:
    """How each lane and class has fared so far; the page shows values as they are, and wants a name for each line."""
    return [
        {name: _shown(value) for name, value in line._asdict().items()} | {"name": f"{line.lane}/{line.traffic_class}"}
        for line in lane_stats(log.table(), log.details())
    ]


def _shown(value: float | str) -> float | str | None:
    """JSON knows no NaN."""
    if isinstance(value, str):
        return value
    return round(value, 1) if math.isfinite(value) else None
