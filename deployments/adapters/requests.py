"""Requests that change which adapters there are, in vLLM's shape."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(strict=True, min_length=1, max_length=256)]


class LoadAdapterRequest(BaseModel):
    """``POST /v1/load_lora_adapter``: an adapter that all replicas of a model are to load.

    Args:
        lora_name: Its name in the API.
        lora_path: Folder of its checkpoint in PEFT's format, absolute or relative to the application's folder, where
            every replica can read it, or a model hub's name.
        model: The model that it is of; not needed where there is only one.
    """

    model_config = ConfigDict(extra="allow")

    lora_name: Name
    lora_path: Name
    model: Name | None = None


class UnloadAdapterRequest(BaseModel):
    """``POST /v1/unload_lora_adapter``: an adapter that all replicas are to forget.

    Args:
        lora_name: Its name in the API.
    """

    model_config = ConfigDict(extra="allow")

    lora_name: Name
