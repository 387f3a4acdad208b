"""The bill of materials: every package of the environment, with version, licence and what it asks for, as CycloneDX.

It has no hashes: of a package that is installed it can't be told which of its files it came as. The lock has them all.
"""

import tomllib
from collections.abc import Mapping

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply_chain.installed import Installed
from supply_chain.lockfile import ROOT


def bill_of_materials(present: Installed, licences: Mapping[str, str]) -> str:
    """The JSON of a CycloneDX 1.6 document, which its schema allows.

    Args:
        present: The packages.
        licences: Theirs, by name.

    Raises:
        ValueError: The schema does not allow it.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    components = {name: _component(name, each.version, licences.get(name, "")) for name, each in present.items()}
    root = _component(project["name"], project["version"], project["license"], ComponentType.APPLICATION)
    components.pop(project["name"], None)
    bill = Bom(components=components.values())
    bill.metadata.component = root
    asked = {name: _asked(each.requires or []) for name, each in present.items()}
    bill.register_dependency(root, [components[name] for name in _asked_by(project) if name in components])
    for name, component in components.items():
        bill.register_dependency(component, [components[each] for each in sorted(asked[name]) if each in components])
    text = str(JsonV1Dot6(bill).output_as_string(indent=2))
    check_bill(text)
    return text


def check_bill(text: str) -> None:
    """Whether CycloneDX's own schema allows a document.

    Args:
        text: Its JSON.

    Raises:
        ValueError: It does not.
    """
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"not a CycloneDX 1.6 document: {wrong}")


def _component(name: str, version: str, licence: str, kind: ComponentType = ComponentType.LIBRARY) -> Component:
    link = PackageURL("pypi", None, name, version) if kind is ComponentType.LIBRARY else None
    return Component(
        type=kind,
        name=name,
        version=version,
        bom_ref=f"{name}=={version}",
        purl=link,
        licenses=[LicenseExpression(licence)] if licence else [],
    )


def _asked_by(project: Mapping[str, object]) -> set[str]:
    """What spillway itself asks for, with every extra; what is not installed is dropped later."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    assert isinstance(project["dependencies"], list)
    return _asked([*project["dependencies"], *(each for extra in extras.values() for each in extra)])


def _asked(requirements: list[str]) -> set[str]:
    """Names of what is asked for here, without extras: which ones were asked for, a package does not say."""
    parsed = [Requirement(each) for each in requirements]
    return {
        canonicalize_name(each.name) for each in parsed if each.marker is None or each.marker.evaluate({"extra": ""})
    }
