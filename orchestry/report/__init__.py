"""Reports: read from run directories, never from the engine."""
