"""Random ONNX models, built by Roller and by plain TVM, beside onnxruntime: ``python -m roller_check fuzz``."""
