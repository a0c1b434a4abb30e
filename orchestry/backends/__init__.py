"""How the team learns: one file a backend."""
