"""Compiled plans held against the prediction: what counts as right, and what is told of what is not."""



from roller_bench.figures.resources import summary


def result(own, status="ok", predicted=64, registers=64, shared=4096, **more):
    kernel = {"recipe": "gpu.tiled", "predicted_registers": predicted, "predicted_shared": 4096, "threads": 64,
              "sm_80": [registers, 0, shared]}  # fmt: skip
    base = {"id": own, "rank": 0, "device": "a100", "dtype": "float32", "status": status}
    if status != "ok":
        return base | {"error": "needs 8 B of local memory"} | more
    return base | {"recipe": ["gpu.tiled"], "variant": "", "build_s": 0.1, "kernels": [kernel]} | more


def test_a_quarter_more_registers_are_borne_and_not_more():
    text = summary([result("a", registers=85), result("b", registers=86), result("c", registers=20)])
    assert "within 25% or above: 2" in text and "shared memory as predicted 3" in text


def test_what_has_no_plan_left_is_named():
    text = summary([result("a", "spills"), result("a", rank=1), result("b", "fallback")])
    assert "3 plans of 2 operators" in text and "a#0 spills: needs 8 B of local memory" in text
    assert "fallbacks to TVM's default schedule: 1 b" in text


def test_shared_memory_that_differs_is_counted():
    assert "shared memory as predicted 1" in summary([result("a", shared=4100), result("b")])


def test_newer_architectures_stand_after_older_ones():
    row = result("a")
    row["kernels"][0] |= {"sm_100": [64, 0, 4096]}
    text = summary([row])
    assert text.index("sm_80: 1 kernels") < text.index("sm_100: 1 kernels")
