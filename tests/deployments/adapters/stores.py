"""Places where adapters may be, for tests: a folder, and a bucket of a local S3 server."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

_numbers = itertools.count()
"""Servers of one process have their buckets in common."""
REGION = "us-east-1"


@contextlib.contextmanager
def bucket_of(folder: Path) -> Iterator[str]:
    """The URI of a bucket that holds what a folder does, as long as the block lasts."""
    bucket = f"bucket-{next(_numbers)}"
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{host}:{port}",
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket=bucket)
        for file in folder.rglob("*"):
            if file.is_file():
                client.upload_file(str(file), bucket, f"loras/{file.relative_to(folder)}")
        yield f"s3://test:test@{bucket}/loras?endpoint_override={host}:{port}&scheme=http&region={REGION}"
    finally:
        server.stop()


def write_adapters(folder: Path, *names: str) -> None:
    """Folders that look like adapters'."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "adapter_config.json").write_text('{"r": 8}')
        (folder / name / "adapter_model.safetensors").write_bytes(b"weights of " + name.encode())
