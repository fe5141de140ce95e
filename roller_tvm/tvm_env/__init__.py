"""Finding TVM, loading it without environment variables, telling what it can do."""
