"""Measuring common to both lines of TVM: worker processes, sessions, comparing answers, tables. Imports no TVM."""
