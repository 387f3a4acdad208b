"""How scenario files are read: strictly, into the dataclasses that do the work, with errors that say where.

A file's fields are the dataclasses' fields. Where one of several kinds may stand, the file names it:
``arrivals: {poisson: {rate_per_s: 5}}``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from cluster.config.strict import misfit
from policies.errors import ConfigError


class Strict(BaseModel):
    """A part of a file: unknown fields are errors, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ForDataclass(Strict):
    """A part of a file with the same fields as a dataclass that pydantic can't read by itself."""

    target: ClassVar[Callable[..., Any]]
    """The dataclass."""

    def build(self) -> Any:
        """The dataclass, with its own defaults for what the file leaves out."""
        fields = type(self).model_fields
        return self.target(**{fields[name].alias or name: getattr(self, name) for name in self.model_fields_set})


@dataclass(frozen=True, slots=True)
class Located:
    """Checks a field whose dataclass checks itself: its ``ConfigError`` is reported with the place in the file."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(_locate, handler(source))


@dataclass(frozen=True, slots=True)
class ReadAs:
    """Checks a field whose dataclass is read through a model that builds it.

    Args:
        model: The model.
    """

    model: type[ForDataclass]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        read = handler.generate_schema(self.model)
        built = core_schema.no_info_after_validator_function(lambda model: model.build(), read)
        return core_schema.no_info_wrap_validator_function(_locate, built)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Checks a field where one of several kinds stands, as a mapping with the kind's name as its only key.

    Args:
        kinds: Type by name.
    """

    kinds: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices: dict[Any, CoreSchema] = {}
        for name, kind in self.kinds.items():
            located = core_schema.no_info_wrap_validator_function(_locate, handler.generate_schema(kind))
            choices[name] = core_schema.no_info_before_validator_function(_inside, located)
        return core_schema.tagged_union_schema(
            choices,
            discriminator=_only_key,
            custom_error_type="one_of",
            custom_error_message=f"a mapping with one of these keys: {', '.join(self.kinds)}",
        )


def _only_key(value: object) -> Any:
    return next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else None


def _inside(value: Mapping[str, object]) -> object:
    return next(iter(value.values()))


def _locate(value: Any, handler: core_schema.ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ConfigError as error:
        raise misfit(error.field, error.value, error.allowed) from error


def beside_the_file(value: str, info: ValidationInfo) -> str:
    """A path in a file, made relative to where the file is."""
    return str(Path((info.context or {}).get("folder", "."), value))


PathBesideTheFile = Annotated[str, AfterValidator(beside_the_file)]
"""A path, absolute or relative to the folder of the file in which it stands."""
