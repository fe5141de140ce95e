"""Measuring that is the same on both of TVM's lines: worker processes, sessions, answers, tables. Imports no TVM."""
