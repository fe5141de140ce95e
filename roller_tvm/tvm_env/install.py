"""Installs the Relay-line TVM that PyPI has, and the hook that makes ``import tvm`` find it."""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

from roller_tvm.children import python
from roller_tvm.errors import NoTvm, TvmLineError
from roller_tvm.tvm_env import hook
from roller_tvm.tvm_env.locate import Line, TvmFound, find_tvm
from roller_tvm.tvm_env.stub import write_driver_stub

# Carries TVM 0.17.dev0 (Apache-2.0) with llvm, cuda, opencl and nvptx; installed without its dependencies,
# which are those of another project (torch among them).
WHEEL = "bitblas==0.1.0.post1"
REQUIREMENTS = Path(__file__).with_name("relay-line.txt")
HOOK = "_roller_tvm_hook"


def site_packages() -> Path:
    """Return the folder of this interpreter's packages; the hook goes there."""
    return Path(sysconfig.get_paths()["purelib"])


def install_hook(site: Path) -> None:
    """Write the hook module, the driver's stub and the .pth file that runs the hook at interpreter start."""
    package = site / HOOK
    package.mkdir(parents=True, exist_ok=True)
    write_driver_stub(package / hook.DRIVER_STUB)
    (package / "__init__.py").write_text(Path(hook.__file__).read_text())
    # Last, so that no interpreter runs a hook that is half there.
    (site / f"{HOOK}.pth").write_text(f"import {HOOK}\n")


def remove_hook(site: Path) -> None:
    """Undo `install_hook`; packages installed by pip stay."""
    (site / f"{HOOK}.pth").unlink(missing_ok=True)
    package = site / HOOK
    if package.is_dir():
        import shutil

        shutil.rmtree(package)


def install_relay_tvm() -> TvmFound:
    """Install the PyPI wheel's TVM into this environment, unless a TVM of the Relay line is already there.

    Returns
    -------
    TvmFound
        The TVM that ``import tvm`` gives afterwards.
    """
    found = find_tvm()
    if found is not None and found.line is not Line.RELAY:
        raise TvmLineError(
            f"TVM {found.version} ({found.line.value} line) is here; an environment holds one TVM",
            where=str(found.root),
            remedy="in an environment of its own: pip install roller-tvm && roller-tvm install-tvm",
        )
    if found is not None and not found.from_wheel:
        return found
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise NoTvm(
            f"PyPI's Relay-line TVM is for Linux x86_64 (this is {platform.system()} {platform.machine()})",
            remedy="build TVM 0.13 to 0.19 from source and put its python/ folder on PYTHONPATH",
        )
    _pip("install", "-r", str(REQUIREMENTS))
    _pip("install", "--no-deps", WHEEL)
    install_hook(site_packages())
    # The hook acts at interpreter start, so what it gives is asked of a new interpreter.
    check = "import tvm; print(tvm.__version__)"
    done = subprocess.run(python("-c", check), capture_output=True, text=True)
    if done.returncode != 0:
        raise NoTvm(
            "TVM was installed and cannot be imported: " + done.stderr.strip().splitlines()[-1],
            where=str(site_packages()),
            remedy="roller-tvm doctor",
        )
    root = site_packages() / hook.WHEEL_TVM / "tvm"
    return TvmFound(root=root, version=done.stdout.strip(), line=Line.RELAY, from_wheel=True)


def _pip(*args: str) -> None:
    # The wheel is large: show progress to whoever watches, keep logs short.
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    done = subprocess.run([*python("-m", "pip"), "--disable-pip-version-check", *quiet, *args])
    if done.returncode != 0:
        raise NoTvm(
            f"pip {' '.join(args)} failed (exit code {done.returncode}); its own message is above",
            remedy="check that pip reaches its package index, then run `roller-tvm install-tvm` again",
        )
