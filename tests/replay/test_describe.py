"""From a record's steps to the kernel that the model is told of."""

import pytest

from roller_bench.replay.describe import kernels_of
from roller_bench.replay.records import parse_line
from roller_bench.replay.state import StageInfo, State, Unreadable
from roller_bench.replay.workload import workload_of
from roller_tvm.micro_perf.kernel import DirectKernel, ReduceKernel, StagedKernel
from tests.replay.examples import AVERAGE_POOLING, CROSS_THREAD, ON_A_CPU, matmul_record, record


def kernels(line, file_name=""):
    parsed = parse_line(1, line)
    return kernels_of(parsed, workload_of(parsed.key, file_name))


def test_a_product_is_read_back_whole():
    (kernel,) = kernels(matmul_record(vectors=(4, 2)))
    assert isinstance(kernel, StagedKernel)
    assert (kernel.block, kernel.thread, kernel.vthreads) == ((64, 64, 8), (8, 4, 1), (2, 1, 1))
    assert (kernel.threads, kernel.blocks, kernel.steps) == (8 * 16, 4 * 8, 16)
    # Outermost first: half the step, a row's outer part, the other half, the rest of the tile.
    assert [(a, e) for a, e in kernel.loops if e > 1] == [(2, 4), (0, 2), (2, 2), (0, 2), (1, 4)]
    assert dict(zip([op.name for op in kernel.geometry.operands], kernel.vectors, strict=True)) == {"A": 4, "B": 2}
    assert kernel.shared_bytes == (64 * 8 + 8 * 64) * 4


@pytest.mark.parametrize("unroll, expected", [(512, True), (128, False), (0, False)])
def test_what_tvm_unrolls_follows_from_the_records_limit(unroll, expected):
    # 2 virtual threads x 16 outputs x 8 points are 256 statements.
    (kernel,) = kernels(matmul_record(unroll=unroll))
    assert all(kernel.unrolled) == expected


def test_pooling_is_two_kernels_without_staging():
    first, second = kernels(AVERAGE_POOLING)
    assert isinstance(first, DirectKernel) and isinstance(second, DirectKernel)
    assert (first.threads, second.threads) == (32, 12)
    assert first.geometry.reduce and not second.geometry.reduce
    assert first.blocks == -(-2 * 8 * 21 * 21 // 32)


def test_threads_along_a_reduction_share_it():
    (kernel,) = kernels(CROSS_THREAD)
    assert isinstance(kernel, ReduceKernel) and (kernel.lanes, kernel.rows, kernel.blocks) == (32, 1, 128 * 512)


def test_threads_share_a_reduction_whose_axes_were_fused_and_split_unevenly():
    line = record(
        ["reduction_layer", [128, 64, 7, 7], [2, 3], False],
        [["FU", 1, [2, 3]], ["SP", 1, 2, 49, [16], 1], ["AN", 1, 3, 6], ["FU", 1, [0, 1]], ["AN", 1, 0, 5]],
    )  # fmt: skip
    (kernel,) = kernels(line)
    assert isinstance(kernel, ReduceKernel) and (kernel.lanes, kernel.rows, kernel.blocks) == (16, 1, 128 * 64)


def test_the_operator_comes_from_the_file_where_the_key_is_a_hash():
    line = matmul_record(key=["0123456789abcdef", [256, 128], [128, 512]])
    (kernel,) = kernels(line, "matmul_256_128_512.json.gz")
    assert kernel.geometry.extents == (256, 512, 128)
    with pytest.raises(Unreadable, match="not one of"):
        kernels(line, "log.json")


def test_a_hash_is_told_apart_from_an_operator_that_is_not_known():
    with pytest.raises(Unreadable, match="hash alone.*name the file after the operator"):
        kernels(matmul_record(key=["0123456789abcdef" * 2, [256, 128], [128, 512], [256, 512]]), "resnet50.json")


def test_padding_is_guarded_and_read_from_the_unpadded_tensor():
    workload = workload_of('["conv2d_layer", 8, 16, 14, 14, 32, 3, 3, 1, "SAME"]')
    assert [s.name for s in workload.stages] == ["data", "pad", "weight", "conv2d"]
    same = workload_of('["conv2d_layer", 8, 16, 16, 16, 32, 3, 3, 1, 0]')
    assert [s.name for s in same.stages] == ["data", "pad", "weight", "conv2d"]
    assert same.expression.output.shape == workload.expression.output.shape


@pytest.mark.parametrize("line, reason", [
    (ON_A_CPU, "bound to no GPU threads"),
    (record(["matmul_layer", 8, 8, 8], [["XX", 1]]), "step 0 .*unknown step"),
    (record(["matmul_layer", 8, 8, 8], [["SP", 9, 0, 8, [2], 1]]), "step 0 .*IndexError"),
    (record(["matmul_layer", 8, 8, 8], [["SP", 2, 0, 8, [0], 1]]), "split lengths"),
    (record(["matmul_layer", 8, 8, 8], [["FU", 2, [0, 2]]]), "not neighbours"),
    (record(["matmul_layer", 8], []), "workload"),
    (record(["softmax", 8, 8], []), "not one of"),
    (record(["pool_layer", "odd", 2, 8, 42, 42, 3, 3, 2, "SAME"], []), "pooling by"),
])  # fmt: skip
def test_what_cannot_be_read_says_why(line, reason):
    with pytest.raises(Unreadable, match=reason):
        kernels(line)


def test_a_split_that_leaves_a_rest_rounds_up():
    state = State.replay([StageInfo("a", (10,))], [("SP", 0, 0, 10, (4,), 1)])
    assert [loop.extent for loop in state.stages[0].loops] == [3, 4]
    assert [loop.parts[0].stride for loop in state.stages[0].loops] == [4, 1]


def test_a_loop_over_two_axes_of_the_expression_is_split_where_one_ends():
    # i is 4 x 8 to the expression: i // 8 and i % 8.
    info = StageInfo("y", (32, 6), digits=(((0, 4), (1, 8)), ((2, 6),)))
    state = State.replay([info], [["SP", 0, 0, 32, [16], 1], ["FU", 0, [1, 2]], ["SP", 0, 1, 96, [12], 1]])
    (stage,) = state.stages
    walked = [[(p.axis, p.extent, p.stride) for p in loop.parts] for loop in stage.loops]
    assert walked == [[(0, 2, 2)], [(0, 2, 1), (1, 4, 2)], [(1, 2, 1), (2, 6, 1)]] and stage.spatial == 3
