"""A sandbox level for machines without Landlock: CPython in WebAssembly."""
