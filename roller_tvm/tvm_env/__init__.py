"""Finding TVM, loading it without environment variables, telling what it can do."""

from roller_tvm.tvm_env.locate import Line, TvmFound, find_tvm, import_relax_tvm, import_relay_tvm, line, line_of
from roller_tvm.tvm_env.threads import set_threads, use_all_cores, use_threads, wanted_threads

__all__ = [
    "Line",
    "TvmFound",
    "find_tvm",
    "import_relax_tvm",
    "import_relay_tvm",
    "line",
    "line_of",
    "set_threads",
    "use_all_cores",
    "use_threads",
    "wanted_threads",
]
