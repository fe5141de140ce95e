"""Packaging. One core that needs numpy alone; everything else is an extra (see CONTRIBUTING.md)."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def lines(path: str) -> list:
    """Requirements in a file, comments and blank lines left out."""
    text = (ROOT / path).read_text().splitlines()
    return [line for line in (raw.split("#")[0].strip() for raw in text) if line]


scope: dict = {}
exec((ROOT / "roller_tvm/version.py").read_text(), scope)

# What TVM from the PyPI wheel needs beside it; `roller-tvm install-tvm` installs these and the wheel itself.
RELAY = lines("roller_tvm/tvm_env/relay-line.txt")
# TVM as pip has it. ffi 0.1.15, which pip would take, crashes (roller_tvm/tvm_env/ffi.py); cloudpickle and psutil are
# what MetaSchedule's builder and runner need, tornado its RPC.
RELAX = ["apache-tvm>=0.26,<0.28", "apache-tvm-ffi==0.1.14.post1", "cloudpickle", "psutil", "tornado"]
# pyopencl runs kernels on PoCL, where there is one (Debian: pocl-opencl-icd).
OPENCL = ["pyopencl"]
# Integer sets, for proofs.
PROOF = ["islpy"]
# Several machines: Python's side of MPI, and an MPI of its own with mpirun (any other serves too).
MPI = ["mpi4py>=4", 'openmpi>=5; sys_platform == "linux"']
TEST = ["pytest>=8", "hypothesis>=6", *PROOF, *MPI, *OPENCL]

# Packages of tools, in python/.
TOOLS = ["roller_check", "roller_bench", "roller_bench.*"]

setup(
    name="roller-tvm",
    version=scope["__version__"],
    description="Roller for TVM: schedules constructed from aligned tiles in seconds, without search",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    # python/ is the source root of the tools, which the product does not import.
    packages=[
        *find_packages(include=["roller_tvm*"]), *find_packages("python", include=["roller_bench*", "roller_check*"])
    ],
    package_dir={"roller_bench": "python/roller_bench", "roller_check": "python/roller_check"},
    package_data={
        "roller_tvm.device": ["data/*.toml", "*.c", "*.cu"],
        "roller_bench.kit": ["*.cu"],
        "roller_tvm.tvm_env": ["*.txt"],
        "roller_bench": ["suites/*.csv"],
        "roller_check": ["runtime/*.cc", "runtime/*.h", "runtime/include/*.h"],
    },
    install_requires=["numpy", 'tomli>=2; python_version < "3.11"'],
    extras_require={
        # One TVM an environment: relay or relax, each with its own reader of ONNX.
        "relay": RELAY,
        "relax": RELAX,
        "xgboost": ["xgboost>=2"],
        # Pictures of a comparison; its tables need nothing.
        "bench": ["matplotlib>=3.8"],
        # onnx 1.19 dropped onnx.mapping, which Relay's importer reads.
        "onnx": ["onnx==1.18.0", "onnxruntime"],
        # Relax's importer takes what onnxslim leaves of an export.
        "relax-onnx": ["onnx>=1.18", "onnxslim", "onnxruntime"],
        "relax-torch": ["torch>=2.6"],
        "opencl": OPENCL,
        "proof": PROOF,
        "mpi": MPI,
        # rich shows progress and tables.
        "demo": ["pillow", "rich"],
        "test": TEST,
        "dev": [*TEST, "ruff", "mypy", "import-linter"],
    },
    entry_points={
        "console_scripts": ["roller-tvm = roller_tvm.cli:main"],
        # Where torch.compile(..., backend="roller") looks.
        "torch_dynamo_backends": ["roller = roller_tvm.torch_backend:roller"],
    },
)
