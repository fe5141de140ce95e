"""One small example of each named operator and of each of its forms."""

from roller_tvm.ir.operators import parse_params

_TEXT = """
conv2d_nchw n=1 c=4 h=8 w=8 f=6 k=3
conv2d_nchw n=2 c=4 h=9 w=7 f=6 k=3 padding=1 bias=1 relu=1
conv2d_nchw n=1 c=4 h=9 w=8 f=6 kh=3 kw=5 padding=SAME stride=2x1
conv2d_nchw n=1 c=4 h=9 w=8 f=6 k=2 padding=SAME dilation=1x2 dtype=float16
conv2d_nchw n=1 c=4 h=9 w=8 f=6 k=3 padding=0x1x2x3 relu=1
conv2d_nchw n=1 c=8 h=8 w=8 f=12 k=3 padding=SAME groups=4
conv2d_nchw n=1 c=8 h=8 w=8 f=8 k=3 groups=8
conv2d_nhwc n=1 c=4 h=8 w=8 f=6 kh=1 kw=3 padding=SAME
conv2d_nhwc n=1 c=8 h=8 w=8 f=12 k=3 groups=4 bias=1
depthwise_conv2d_nchw n=2 c=6 h=9 w=9 k=3 stride=2 padding=SAME
depthwise_conv2d_nchw n=1 c=6 h=9 w=9 k=3 multiplier=2 bias=1
depthwise_conv2d_nhwc n=1 c=6 h=9 w=9 k=5 padding=SAME
depthwise_conv2d_nhwc n=1 c=6 h=9 w=9 k=3 multiplier=2
matmul m=4 n=5 k=6
matmul m=4 n=5 k=6 layout=NT relu=1
matmul m=4 n=5 k=6 layout=TN bias=1
matmul m=4 n=5 k=6 layout=TT dtype=float16
dense m=4 n=5 k=7
dense m=1 n=5 k=6 bias=1 relu=1
batch_matmul b=3 m=4 n=5 k=6
batch_matmul b=3 m=4 n=5 k=6 layout=NT
avg_pool2d_nchw n=1 c=3 h=9 w=9 k=3 stride=2 padding=SAME
avg_pool2d_nchw n=1 c=3 h=9 w=9 k=1 stride=2 kind=avg
max_pool2d_nchw n=1 c=3 h=8 w=8 k=3 stride=2 padding=SAME
global_avg_pool2d_nchw n=1 c=16 h=7 w=7
reduce_sum shape=3x4x5x6
reduce_sum shape=3x4x5 axis=0,2
reduce_sum shape=3x4x5 axis=0,1,2
reduce_sum shape=3x4x5 axis=-2 keepdims=1
reduce_max shape=3x4x5
softmax shape=3x4x5
softmax shape=3x4x5 axis=1
layer_norm shape=3x4x5
relu shape=3x4x5
add shape=3x4x5
add shape=3x4x5 other=4x1
add shape=3x1x5 other=1x5
transpose shape=3x4x5
transpose shape=3x4x5 perm=1,0,2 dtype=float16
"""

EXAMPLES = [(line.split()[0], parse_params(line.partition(" ")[2])) for line in _TEXT.split("\n") if line]
