"""``roller-tvm install-tvm``."""

from __future__ import annotations

import argparse

from roller_tvm.tvm_env.install import install_relay_tvm, remove_hook, site_packages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "--remove-hook", action="store_true", help="remove the hook by which `import tvm` finds this TVM"
    )


def run(args: argparse.Namespace) -> int:
    """Install, say what there is now."""
    if args.remove_hook:
        remove_hook(site_packages())
        print(f"hook removed from {site_packages()}")
        return 0
    found = install_relay_tvm()
    whose = "from the PyPI wheel" if found.from_wheel else "your own, left untouched"
    print(f"TVM {found.version} ({found.line.value} line, {whose}) at {found.root}")
    return 0
