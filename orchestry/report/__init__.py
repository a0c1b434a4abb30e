"""Reports, made only from run directories."""
