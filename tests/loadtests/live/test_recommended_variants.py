"""Studies that run the recommended policies on other engines write them out: they are those of the configuration."""

from typing import Any

import yaml

from deployments.launch import CONFIGS
from loadtests.live.study import library
from tests.tables import for_each

NAME = "recommended"
OF_THE_ENGINE = ("planning", "lanes")


def recommended() -> dict[str, Any]:
    document = yaml.safe_load((CONFIGS / "recommended.yaml").read_text())
    policies: dict[str, Any] = document["applications"][0]["args"]["policies"]
    return policies


@for_each("path", [path for path in library() if NAME in yaml.safe_load(path.read_text())["variants"]])
def test_a_variant_of_that_name_has_the_recommended_policies(path: Any) -> None:
    variant = yaml.safe_load(path.read_text())["variants"][NAME]["args"]["policies"]

    assert variant == {name: value for name, value in recommended().items() if name not in OF_THE_ENGINE}
