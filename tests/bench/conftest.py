"""Jobs of a comparison on the line that is here, in this process, each on a small operator."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from roller_bench.cases import Case
from roller_tvm.tvm_env import line

#: One core: the tests run beside others.
TARGET = "llvm -mcpu=core-avx2 -num-cores=1"
CASES = [Case("dense", "dense", "m=4 n=32 k=16 bias=1 relu=1"), Case("norm", "layer_norm", "shape=4x16"),
         Case("softmax", "softmax", "shape=4x16"), Case("product", "matmul", "m=4 n=32 k=16")]  # fmt: skip


@dataclass
class Jobs:
    """An edge, the folder of a comparison, and the operators prepared there."""

    edge: Any
    folder: Path
    prepared: dict[str, Any]

    def tune(self, case, tuner, trials):
        given = self.prepared[case]
        return self.edge.tune(str(self.folder / given["file"]), given["case"], tuner, trials, TARGET, str(self.folder))

    def comes_again(self, case, tuner, trials, found):
        """Whether the kernel of a schedule is the same file when it is built from what results tell."""
        given, kernel = self.prepared[case], self.folder / found["kernel"]
        kernel.unlink()
        again = self.edge.build_again(str(self.folder / given["file"]), given["case"], tuner, trials, found["schedule"],
                                      TARGET, str(self.folder))  # fmt: skip
        return again == found["kernel"] and kernel.exists()

    def open(self, case):
        given = self.prepared[case]
        return self.edge.EDGE.open(self.folder / given["file"], Case.from_json(given["case"]), TARGET, self.folder)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    edge, folder = import_module(f"roller_bench.{line()}"), tmp_path_factory.mktemp("comparison")
    prepared = {p["case"]["id"]: p for p in edge.prepare([c.to_json() for c in CASES], TARGET, str(folder))}
    return Jobs(edge, folder, prepared)
