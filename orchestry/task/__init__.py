"""What a user writes, and what banks and rewards share."""
