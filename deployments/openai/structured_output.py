"""What an answer has to match, as clients say it: OpenAI's ``response_format`` and vLLM's ``structured_outputs``."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from deployments.openai.validation import Unserved
from engines.contract import StructuredOutput

NotEmpty = Annotated[str, Field(strict=True, min_length=1)]


class JsonSchema(BaseModel):
    """A schema with a name, as OpenAI has it; every schema is held to strictly."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(strict=True)]
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """OpenAI's ``response_format``, with vLLM's ``structural_tag``; one that is empty says nothing."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "json_object", "json_schema", "structural_tag"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _a_schema_is_there(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise Unserved("response_format", "response_format of type json_schema needs json_schema: {name, schema}")
        return self

    def structured_output(self) -> StructuredOutput | None:
        """The engine's terms; ``None``: any text will do."""
        if self.type == "json_object":
            return StructuredOutput("json_object")
        if self.json_schema is not None and self.type == "json_schema":
            return StructuredOutput("json", _json(self.json_schema.schema_))
        if self.type == "structural_tag":
            return StructuredOutput("structural_tag", _json({"type": self.type, **(self.model_extra or {})}))
        return None


class StructuredOutputs(BaseModel):
    """vLLM's ``structured_outputs``: exactly one of its kinds.

    Whitespace and further properties are settings of the engine, so all that a request may say of them is nothing.
    """

    model_config = ConfigDict(extra="forbid")

    json_: dict[str, Any] | NotEmpty | None = Field(default=None, alias="json")
    json_object: Literal[True] | None = None
    regex: NotEmpty | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: NotEmpty | None = None
    structural_tag: NotEmpty | None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "StructuredOutputs":
        kinds = (self.json_, self.json_object, self.regex, self.choice, self.grammar, self.structural_tag)
        if sum(each is not None for each in kinds) != 1:
            sentence = "structured_outputs must have one of json, json_object, regex, choice, grammar, structural_tag"
            raise Unserved("structured_outputs", sentence)
        return self

    def structured_output(self) -> StructuredOutput:
        """The engine's terms."""
        if self.json_object:
            return StructuredOutput("json_object")
        if self.json_ is not None:
            return StructuredOutput("json", self.json_ if isinstance(self.json_, str) else _json(self.json_))
        if self.choice is not None:
            return StructuredOutput("choice", _json(self.choice))
        if self.regex is not None:
            return StructuredOutput("regex", self.regex)
        if self.grammar is not None:
            return StructuredOutput("grammar", self.grammar)
        return StructuredOutput("structural_tag", self.structural_tag or "")


def structured_output_of(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> StructuredOutput | None:
    """What a request's answer has to match; ``response_format`` goes before the other, as vLLM has it."""
    wanted = response_format.structured_output() if response_format is not None else None
    if wanted is None and structured_outputs is not None:
        return structured_outputs.structured_output()
    return wanted


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
