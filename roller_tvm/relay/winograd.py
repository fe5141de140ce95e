"""3x3 convolutions computed by Winograd's algorithm where the model predicts a gain for the device.

Relay itself chooses the algorithm for some shapes, by rules of its own that know no device. This asks the
micro-performance model: both forms of each convolution are planned, and the faster one stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.te.winograd import WINDOW
from roller_tvm.tvm_env import import_relay_tvm

#: Outputs of a tile along an axis: F(4x4, 3x3), the tile that Relay takes.
TILE = 4
#: How much faster Winograd must be predicted. Its transforms and buffers cost what the model does not see: measured
#: times were 1.1 to 1.4 times the predicted ones, those of direct convolutions 0.95 to 1.1 times.
GAIN = 1.5


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution, NHWC, stride 1: what both forms of it are planned for."""

    batch: int
    height: int
    width: int
    channels: int
    filters: int
    padding: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        shape = f"{self.batch}x{self.height}x{self.width}x{self.channels}"
        return f"3x3 convolution of {shape} to {self.filters} channels"


@dataclass(frozen=True)
class Choice:
    """Predicted seconds of both forms of one convolution; nan where there is no plan."""

    convolution: Convolution
    direct_s: float
    winograd_s: float
    chosen: bool

    def __str__(self) -> str:
        what = "Winograd" if self.chosen else "direct"
        times = f"direct {self.direct_s * 1e6:.0f} us, Winograd {self.winograd_s * 1e6:.0f} us"
        return f"{self.convolution}: {what} ({times})"


def predict(convolution: Convolution, device: DeviceSpec, target: Any) -> tuple[float, float]:
    """Predicted seconds of the direct form and of Winograd's, weights transformed and packed beforehand."""
    tvm = import_relay_tvm("predicting Winograd's gain")
    from tvm import te, topi

    from roller_tvm.planner.plan_cache import plan_cache
    from roller_tvm.te import read_te

    c = convolution
    data = te.placeholder((c.batch, c.height, c.width, c.channels), c.dtype, name="data")
    plain = te.placeholder((WINDOW, WINDOW, c.channels, c.filters), c.dtype, name="weight")
    edge = TILE + WINDOW - 1
    transformed = te.placeholder((edge, edge, c.filters, c.channels), c.dtype, name="weight")
    seconds = []
    for weight, compute in (
        (plain, topi.nn.conv2d_nhwc),
        (transformed, topi.nn.conv2d_winograd_nhwc_without_weight_transform),
    ):
        with tvm.target.Target(target):
            output = compute(data, weight, 1, list(c.padding), 1, c.dtype)
        try:
            reading = read_te([data, weight, output], constants=("weight",))
            seconds.append(plan_cache().construct(reading.expression, device, top=1).best.seconds)
        except UnsupportedOperator:
            seconds.append(float("nan"))
    return seconds[0], seconds[1]


def use_winograd(
    mod: Any, params: Mapping[str, Any] | None, device: DeviceSpec, target: Any, gain: float = GAIN
) -> tuple[Any, list[Choice]]:
    """Return the module with Winograd's algorithm for convolutions that it speeds up by `gain`, as predicted; and the
    choices.

    Candidates are NHWC convolutions with 3x3 windows, stride 1 and constant weights. Pass the returned module to
    ``tune`` and ``build`` instead of the original one. TVM has no schedule of its own for it: build it with
    ``relay.backend.use_auto_scheduler``.

    Parameters
    ----------
    mod : tvm.IRModule
    params : mapping of str to array
        Values of parameters, which count as constant.
    device : DeviceSpec
    target : str or tvm.target.Target
    gain : float

    Returns
    -------
    (tvm.IRModule, list of Choice)

    Examples
    --------
    >>> mod, choices = use_winograd(mod, params, device, "llvm -mcpu=skylake-avx512")
    >>> print(choices[0])
    3x3 convolution of 1x56x56x64 to 64 channels: Winograd (direct ... us, Winograd ... us)
    """
    import_relay_tvm("rewriting convolutions to Winograd's algorithm")
    from tvm import relay

    class Rewriter(relay.ExprMutator):
        """Replaces convolutions; each shape is decided once."""

        def __init__(self) -> None:
            super().__init__()
            self.choices: dict[Convolution, Choice] = {}

        def visit_call(self, call: Any) -> Any:
            new = super().visit_call(call)
            convolution = candidate(call, params or {})
            if convolution is None:
                return new
            if convolution not in self.choices:
                direct, winograd = predict(convolution, device, target)
                chosen = winograd * gain <= direct
                self.choices[convolution] = Choice(convolution, direct, winograd, chosen)
            if not self.choices[convolution].chosen:
                return new
            data, weight = new.args
            by_filter = relay.transpose(weight, axes=[3, 2, 0, 1])
            transformed = relay.nn.contrib_conv2d_winograd_weight_transform(by_filter, tile_size=TILE)
            return relay.nn.contrib_conv2d_winograd_without_weight_transform(
                data, transformed, TILE, strides=(1, 1), padding=convolution.padding, channels=convolution.filters,
                kernel_size=(WINDOW, WINDOW), data_layout="NHWC", kernel_layout="HWIO",
                out_dtype=call.attrs.out_dtype,
            )  # fmt: skip

    rewriter = Rewriter()
    typed = relay.transform.InferType()(mod)
    main = rewriter.visit(typed["main"])
    typed["main"] = main  # beside what other functions the module has
    return relay.transform.InferType()(typed), list(rewriter.choices.values())


def candidate(call: Any, params: Collection[str]) -> Convolution | None:
    """Return the convolution of a typed call if Winograd's algorithm can compute it; None otherwise."""
    from tvm import relay

    if getattr(call.op, "name", "") != "nn.conv2d":
        return None
    attrs, (data, weight) = call.attrs, call.args
    constant = isinstance(weight, relay.Constant) or (isinstance(weight, relay.Var) and weight.name_hint in params)
    plain = attrs.data_layout == "NHWC" and attrs.kernel_layout == "HWIO" and attrs.out_layout in ("", "NHWC")
    ones = [*map(int, attrs.strides), *map(int, attrs.dilation), int(attrs.groups)]
    kernel = [int(e) for e in weight.checked_type.shape]
    shape = data.checked_type.shape
    if not constant or not plain or set(ones) != {1} or kernel[:2] != [WINDOW, WINDOW]:
        return None
    if any(not hasattr(e, "value") for e in shape):
        return None
    dtype, out = data.checked_type.dtype, attrs.out_dtype or data.checked_type.dtype
    # The transforms lose some three digits, of which float16 has no more.
    if dtype not in ("float32", "float64") or out != dtype or weight.checked_type.dtype != dtype:
        return None
    batch, height, width, channels = map(int, shape)
    return Convolution(batch, height, width, channels, kernel[3], tuple(map(int, attrs.padding)), dtype)
