"""Recurrences: LSTM, GRU and RNN layers as one loop over their steps, on either TVM line."""
