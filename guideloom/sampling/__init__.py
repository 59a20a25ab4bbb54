"""From positions to samples: pure functions, without I/O or state."""
