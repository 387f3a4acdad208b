"""``python -m deployments.tenants new-key NAME`` makes a key."""

import argparse
import sys

import yaml
from pydantic import ValidationError

from deployments.tenants.keys import new_key
from deployments.tenants.tenants_file import KeyEntry, TenantEntry


def main(arguments: list[str] | None = None) -> int:
    """Command line: makes a key."""
    parser = argparse.ArgumentParser(prog="python -m deployments.tenants", description="API keys of tenants.")
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new-key", help="a new key: shown once, and nowhere kept")
    new.add_argument("name", metavar="NAME", help="the tenant's name")
    options = parser.parse_args(arguments)
    key, its_hash = new_key()
    try:
        TenantEntry(name=options.name, keys=[KeyEntry(hash=its_hash)])
    except ValidationError:
        print(f"{options.name!r} is no name: letters, digits, '.', '_' and '-', 128 at most", file=sys.stderr)
        return 2
    entry = yaml.safe_dump({"tenants": [{"name": options.name, "keys": [its_hash]}]}, sort_keys=False)
    print(f"# the key, for the tenant; it is not shown again\n{key}\n")
    print(f"# the tenant, for the file that gateway.tenants names\n{entry}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
