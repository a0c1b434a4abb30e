"""What every room stands on: values, errors, the config, seeds, files, and waiting."""
