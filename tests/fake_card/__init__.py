"""A card that is none: CUDA's libraries over the emulator (`fake_cuda.cc`), and explorations on it in processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from roller_check.build import runtime_library

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def told_by(name, folder, runtime, **own):
    """Run a module of this folder on the card and return the JSON that it prints.

    Parameters
    ----------
    folder : Path
        Takes the libraries, and what the module writes.
    runtime : str
        Name of the CUDA runtime that this TVM takes.
    """
    (folder / "names").write_text(f"{runtime} {{ global: *; }};")
    libraries = []
    for library, more in (("libcuda.so.1", []), (runtime, [f"-Wl,--version-script={folder}/names"])):
        libraries.append(str(folder / library))
        subprocess.run(["g++", "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{library}", *more,
                        str(HERE / "fake_cuda.cc"), "-o", libraries[-1], "-ldl"], check=True)  # fmt: skip
    own |= {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": ":".join(libraries), "FAKE_EMULATOR": str(runtime_library()),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'python'}", "ROLLER_PLAN_CACHE": "off"}  # fmt: skip
    made = subprocess.run([sys.executable, "-m", f"tests.fake_card.{name}", str(folder / "out")],
                          env={**os.environ, **own}, capture_output=True, text=True, cwd=ROOT)  # fmt: skip
    assert not made.returncode, made.stderr[-3000:]
    return json.loads(made.stdout.splitlines()[-1])
