"""Device specifications (the HAL)."""
