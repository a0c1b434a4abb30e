"""Reports, read from run directories alone."""
