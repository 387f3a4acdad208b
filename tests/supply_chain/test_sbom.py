"""The bill of materials names every package, and its schema allows it."""

import json
from importlib.metadata import distribution

import pytest

from supply_chain.sbom import bill_of_materials, check_bill

PRESENT = {name: distribution(name) for name in ("fastapi", "starlette", "pydantic")}
LICENCES = {"fastapi": "MIT", "starlette": "BSD-3-Clause", "pydantic": "LicenseRef-Own"}


def test_every_package_is_in_it_with_version_licence_and_what_it_asks_for() -> None:
    bill = json.loads(bill_of_materials(PRESENT, LICENCES))
    components = {each["name"]: each for each in bill["components"]}
    asked = {each["ref"].partition("==")[0]: each.get("dependsOn", []) for each in bill["dependencies"]}

    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "spillway"
    assert {name: each["version"] for name, each in components.items()} == {
        name: each.version for name, each in PRESENT.items()
    }
    assert {name: each["licenses"][0]["expression"] for name, each in components.items()} == LICENCES
    assert components["fastapi"]["purl"] == f"pkg:pypi/fastapi@{PRESENT['fastapi'].version}"
    assert {each.partition("==")[0] for each in asked["fastapi"]} == {"starlette", "pydantic"}
    assert {each.partition("==")[0] for each in asked["spillway"]} == {"fastapi", "pydantic"}


def test_a_document_that_the_schema_does_not_allow_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not a CycloneDX 1\.6 document"):
        check_bill('{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": "idna"}]}')
