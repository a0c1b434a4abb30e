"""What a user writes, and what banks of problems and rewards share."""
