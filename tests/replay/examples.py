"""Records written by the tests, step by step as Ansor writes them."""

import json
from math import prod

TARGET = "cuda -keys=cuda,gpu -max_num_threads=1024 -thread_warp_size=32"


def record(key, steps, seconds=0.001, error=0, target=TARGET):
    """A line of a record file."""
    task = [json.dumps(key), target, [-1, 16, 64, 49152, 2147483647, 1024, 8, 32], "", 0, []]
    cost = [seconds if not error else 1e10]
    return json.dumps({"i": [task, [[], steps]], "r": [cost, error, 1.0, 1], "v": "v0.6"})


def matmul_steps(m, n, k, rows, columns, depth, vectors=(1, 1), unroll=512):
    """Ansor's multi-level tiling of a product: `rows`, `columns` are (vthread, thread, inner, inner)."""
    def fetch(stage, axes, total, vector):
        return [
            ["FU", stage, list(range(axes))], ["SP", stage, 0, total, [vector], 1], ["AN", stage, 1, 2],
            ["FFSP", stage, 0, [2, 1], 1, 1], ["AN", stage, 1, 6],
        ]  # fmt: skip
    return [
        ["CHW", 2, "local"], ["SP", 2, 0, m, list(rows), 1], ["SP", 2, 5, n, list(columns), 1],
        ["SP", 2, 10, k, list(depth), 1], ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]],
        ["FSP", 3, 0, 1, 3], ["FSP", 3, 4, 2, 3], ["RE", 3, [0, 4, 1, 5, 2, 6, 3, 7]],
        ["CA", 2, 3, 5], ["CHR", 1, "shared", [2]], ["CA", 2, 3, 6], ["CHR", 0, "shared", [3]], ["CA", 1, 4, 6],
        ["FU", 5, [0, 1]], ["AN", 5, 0, 5], ["FU", 5, [1, 2]], ["AN", 5, 1, 4], ["FU", 5, [2, 3]], ["AN", 5, 2, 6],
        *fetch(3, 2, prod(columns) * prod(depth), vectors[1]), *fetch(1, 2, prod(rows) * prod(depth), vectors[0]),
        ["PR", 4, 0, f"auto_unroll_max_step${unroll}"],
    ]  # fmt: skip


def matmul_record(m=256, k=128, n=512, seconds=0.001, error=0, key=None, **tiles):
    """A record of a product of m x k and k x n."""
    tiles = {"rows": (2, 8, 2, 2), "columns": (1, 16, 1, 4), "depth": (4, 2)} | tiles
    return record(key or ["matmul_layer", m, k, n], matmul_steps(m, n, k, **tiles), seconds, error)


AVERAGE_POOLING = record(
    ["pool_layer", "avg", 2, 8, 42, 42, 3, 3, 2, "SAME"],
    [
        ["CI", 1], ["FU", 3, [0, 1, 2, 3]], ["SP", 3, 0, 7056, [12], 1], ["AN", 3, 0, 5], ["AN", 3, 1, 6],
        ["FU", 2, [0, 1, 2, 3]], ["SP", 2, 0, 7056, [32], 1], ["AN", 2, 0, 5], ["AN", 2, 1, 6],
        ["PR", 2, 0, "auto_unroll_max_step$64"],
    ],
)  # fmt: skip

CROSS_THREAD = record(
    ["reduction_layer", [128, 512, 1024], 2, False],
    [
        ["SP", 1, 2, 1024, [32], 1], ["AN", 1, 3, 6], ["FU", 1, [0, 1]], ["AN", 1, 0, 5],
        ["PR", 1, 0, "auto_unroll_max_step$64"],
    ],
)  # fmt: skip

ON_A_CPU = record(
    ["matmul_layer", 64, 64, 64], [["SP", 2, 0, 64, [8], 1], ["FU", 2, [0, 1]], ["AN", 2, 0, 3]], target="llvm"
)  # fmt: skip
