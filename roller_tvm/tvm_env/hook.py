"""Makes ``import tvm`` find the TVM inside the PyPI wheel. Copied into site-packages and run by a .pth file.

It runs at the start of every interpreter, because the workers of AutoTVM and Ansor are fresh processes that
import tvm and nothing of ours. So: standard library only, no import of roller_tvm, nothing done until someone
imports tvm, and any other TVM that can be imported goes first.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing is not imported at every interpreter start
if TYPE_CHECKING:
    from typing import Any

WHEEL_TVM = "bitblas/3rdparty/tvm/python"
# Folder in the NVIDIA wheels, library; libtvm.so is linked with these.
CUDA_LIBRARIES = (("cuda_nvrtc", "libnvrtc.so.12"), ("cuda_runtime", "libcudart.so.12"))
DRIVER, DRIVER_STUB = "libcuda.so.1", "libcuda_stub.so"


def _on_path(relative: str) -> str | None:
    """First place on sys.path that has this file, or None."""
    import os

    for folder in sys.path:
        candidate = os.path.join(folder, relative)
        if os.path.exists(candidate):
            return candidate
    return None


def preload() -> None:
    """Load what libtvm.so is linked with; the driver's stub where there is no driver."""
    import ctypes
    import os

    try:
        ctypes.CDLL(DRIVER, ctypes.RTLD_GLOBAL)
    except OSError:
        ctypes.CDLL(os.path.join(os.path.dirname(__file__), DRIVER_STUB), ctypes.RTLD_GLOBAL)
    for folder, library in CUDA_LIBRARIES:
        try:
            ctypes.CDLL(_on_path(f"nvidia/{folder}/lib/{library}") or library, ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ImportError(
                f"TVM of the bitblas wheel needs {library}: {error}. Remedy: roller-tvm install-tvm"
            ) from error
    # Otherwise the first build waits for a download of old tuning logs that may never come.
    os.environ.setdefault("TOPHUB_LOCATION", "NONE")


class WheelFinder:
    """Last entry of sys.meta_path: answers for ``tvm`` when nobody else does."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "tvm" or path is not None:
            return None
        for finder in sys.meta_path:  # some may have come after us
            if finder is not cls and finder.find_spec(name, path, target) is not None:
                return None
        root = _on_path(WHEEL_TVM)
        if root is None:
            return None
        from importlib.machinery import PathFinder, SourceFileLoader

        class Loader(SourceFileLoader):
            def exec_module(self, module: Any) -> None:
                preload()
                super().exec_module(module)

        spec = PathFinder.find_spec("tvm", [root])
        if spec is not None and spec.origin is not None:
            spec.loader = Loader("tvm", spec.origin)
        return spec


if __name__ == "_roller_tvm_hook" and WheelFinder not in sys.meta_path:
    sys.meta_path.append(WheelFinder)
