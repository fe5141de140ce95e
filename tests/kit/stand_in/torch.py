"""Stands in for torch where it is not installed: shapes as its documentation says they come out, times made up."""

from types import SimpleNamespace

__version__ = "0.0 (stand-in)"
version = SimpleNamespace(cuda="13.0")
float32, float16, bfloat16, uint8 = "float32", "float16", "bfloat16", "uint8"
asked = SimpleNamespace(allow_tf32=False)


class OutOfMemoryError(RuntimeError):
    pass


class Tensor:
    def __init__(self, shape):
        self.shape = tuple(shape)

    def uniform_(self, low, high):
        assert (low, high) == (-1, 1)
        return self

    def mul_(self, factor):
        return self

    def round_(self):
        return self

    def div_(self, divisor):
        return self

    def zero_(self):
        return self

    def transpose(self, a, b):
        shape = list(self.shape)
        shape[a], shape[b] = shape[b], shape[a]
        return Tensor(shape)

    def reshape(self, *shape):
        return Tensor(shape)


def empty(shape, dtype, device):
    assert device == "cuda" and dtype in (float32, float16, bfloat16, uint8)
    return Tensor([shape] if isinstance(shape, int) else shape)


def matmul(a, b):
    assert a.shape[-1] == b.shape[-2]
    return Tensor([*a.shape[:-1], b.shape[-1]])


def relu(x):
    return Tensor(x.shape)


def sum(x, dim):
    return Tensor(e for n, e in enumerate(x.shape) if n not in [d % len(x.shape) for d in dim])


def _windows(x, kernel, stride, padding, dilation, over):
    out = []
    for e, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True):
        left = e + 2 * p - d * (k - 1) - 1
        count = -(-left // s) + 1 if over else left // s + 1
        # A window that begins in the padding behind is left out.
        out.append(count - 1 if over and (count - 1) * s >= e + p else count)
    return out


def _conv2d(x, weight, bias, stride, padding, dilation, groups):
    assert bias is None and x.shape[1] == weight.shape[1] * groups
    return Tensor([x.shape[0], weight.shape[0], *_windows(x, weight.shape[2:], stride, padding, dilation, False)])


def _pool(x, kernel, stride, padding, dilation, over):
    assert all(p <= k // 2 for p, k in zip(padding, kernel, strict=True)), "torch refuses more"
    return Tensor([*x.shape[:2], *_windows(x, kernel, stride, padding, dilation, over)])


def _avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad):
    assert count_include_pad is False
    return _pool(x, kernel, stride, padding, (1, 1), ceil_mode)


def _pad(x, pads):
    left, right, top, bottom = pads
    return Tensor([*x.shape[:2], x.shape[2] + top + bottom, x.shape[3] + left + right])


waits = []


def _wait(cycles):
    assert isinstance(cycles, int) and cycles > 0
    waits.append(cycles)


class _Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 0.005 if backends.cudnn.allow_tf32 else 0.020


nn = SimpleNamespace(functional=SimpleNamespace(conv2d=_conv2d, avg_pool2d=_avg_pool2d, max_pool2d=_pool, pad=_pad))
backends = SimpleNamespace(
    cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)),
    cudnn=SimpleNamespace(allow_tf32=True, benchmark=False, version=lambda: 90000),
)
cuda = SimpleNamespace(
    is_available=lambda: True, Event=_Event, empty_cache=lambda: None, OutOfMemoryError=OutOfMemoryError,
    set_device=lambda ordinal: None, _sleep=_wait,
    get_device_properties=lambda ordinal: SimpleNamespace(name="NVIDIA Made Up", L2_cache_size=1 << 20),
)  # fmt: skip
