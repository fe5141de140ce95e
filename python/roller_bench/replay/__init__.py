"""Ansor's record files, read without TVM and compared with the micro-performance model's predictions."""
